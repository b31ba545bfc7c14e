"""NCCL's environment variables as data: from options, a scenario's [nccl], or an nccl.conf."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simreduce.errors import InputError, quote
from simreduce.files import read_text
from simreduce.files.formats import FLAG, Field, FieldValues, Format, Scalar, whole
from simreduce.files.formats.syntax import Faults, inside
from simreduce.planners.nccl.constants import (
    ALGORITHMS,
    COLLNET,
    CURRENT,
    CURRENT_RCCL,
    NAMED,
    OLDEST,
    PROTOCOLS,
    Rule,
    Version,
    load_tuner,
    unknown,
    version_text,
)
from simreduce.planners.nccl.variables import IDLE, NOT_MODELLED, RENAMED
from simreduce.topology.elements import OFF, TCP
from simreduce.units import plural

Filter = tuple[tuple[str, frozenset[str]], ...]
"""By collective, "" first for all that are not named: what may be chosen."""

_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS")
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "PHB", "SYS")
_COLLNET = ("collnet", "collnetdirect", "collnetchain")
"""The words for CollNet, which is one algorithm here: the node says which form it has."""


_BY_VERBS = ("ib_", "roce_")
"""Prefixes of the classes of networks that NCCL's own plugin for InfiniBand serves."""
_OF_APPLICATIONS = ("symmetric", "registered")
"""What applications do, for which there is no variable."""


@dataclass(frozen=True)
class Settings:
    """NCCL's settings. None and "" leave a decision to NCCL, or the version to the library."""

    version: Version | None = None
    algorithms: Filter = ()
    protocols: Filter = ()
    min_channels: int | None = None
    max_channels: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    nvls_channels: int | None = None
    threads: int | None = None
    buffer: int = 4 << 20
    nvls: bool = True
    p2p_disable: bool = False
    p2p_level: str = ""
    gdr_level: str = ""
    ib_hca: str = ""
    socket_ifname: str = ""
    cross_nic: int = 2
    pxn_disable: bool = False
    p2p_net_chunk: int = 128 << 10
    symmetric: bool = False
    registered: bool = False
    collnet: bool = False
    msccl: bool = True
    cta_policy: int = 0
    tuner: tuple[Rule, ...] = ()

    @property
    def text(self) -> str:
        """How they differ from NCCL's defaults: `version=2.18 NCCL_ALGO=ring`; "" if they do
        not.
        """
        known = assignments(self)
        if self.version not in (None, CURRENT):
            known = {"version": version_text(self.release), **known}
        known |= {name: "1" for name in _OF_APPLICATIONS if getattr(self, name)}
        if told := [rule for rule in self.tuner if rule.algorithm]:
            known["tuner"] = plural(len(told), "rule")
        return " ".join(f"{name}={value}" for name, value in known.items())

    @property
    def reach(self) -> str:
        """The farthest path over which GPUs copy directly by NCCL_P2P_LEVEL or NCCL_P2P_DISABLE, as
        in `Node.peer`; "" if neither says so.
        """
        level = "LOC" if self.p2p_disable else self.p2p_level
        return {"LOC": OFF, "NVL": "NV", "NODE": "PHB"}.get(level, level)

    def takes_nic(self, name: str, network: str) -> bool:
        """Whether NCCL uses a NIC: by NCCL_IB_HCA of InfiniBand and RoCE, by NCCL_SOCKET_IFNAME of
        TCP. Other networks have plugins of their own.

        A list names devices by what they begin with, after `=` exactly, and after `^` those to
        leave out. A port is NICs' first (`parseStringList` of NVIDIA/nccl src/misc/utils.cc).
        """
        text = self.socket_ifname if network.startswith(TCP) else self.ib_hca
        if not text or not network.startswith((TCP, *_BY_VERBS)):
            return True
        without, rest = text[0] == "^", text.removeprefix("^")
        exact, rest = rest[0] == "=", rest.removeprefix("=")
        entries = (each.split(":")[:2] for each in rest.split(","))
        named = [device for device, *port in entries if port in ([], [""], ["1"])]
        found = name in named if exact else name.startswith(tuple(named))
        return found != without

    @property
    def release(self) -> Version:
        """The version whose tables and searches are followed where a library has no own."""
        return self.version or CURRENT


def allows(chosen: Filter, collective: str, word: str) -> bool:
    """Whether a filter leaves an algorithm or a protocol for a collective."""
    fitting = (word in words for name, words in reversed(chosen) if name in (collective, ""))
    return next(fitting, True)


def _version(value: object) -> Version:
    match = re.fullmatch(r"v?2\.(\d{1,2})(\.\d+)?(-\d+)?", str(value))
    found = (2, int(match[1])) if match else (0, 0)
    if not OLDEST <= found <= CURRENT:
        raise ValueError(
            f"must be a version from {version_text(OLDEST)} to {version_text(CURRENT)}, such as"
            f" 2.18, got {quote(value)}"
        )
    return found


def _filter(words: tuple[str, ...], ignored: tuple[str, ...] = ()) -> Scalar[Filter]:
    """`list`, `^list` or `list;function:list;...`."""

    def read(value: object) -> Filter:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be names such as {words[0]}, got {quote(value)}")
        found: list[tuple[str, frozenset[str]]] = []
        for i, part in enumerate(value.split(";")):
            function, colon, names = part.rpartition(":")
            key = function.strip().lower()
            if i and not colon:
                raise ValueError(f"{quote(part)}: all but the first part name a collective first")
            if colon and key not in NAMED:
                raise unknown("collective", function, NAMED)
            found.append((NAMED.get(key, ""), _set(names.strip(), words, ignored)))
        return tuple(found)

    example = {"type": "string", "examples": [f"{words[1]},{words[0]}", f"^{words[0]}"]}
    return Scalar(f"{', '.join(words)}, or ^ and those to leave out", example, read)


def _set(names: str, words: tuple[str, ...], ignored: tuple[str, ...]) -> frozenset[str]:
    wanted = []
    for name in names.removeprefix("^").split(","):
        word = name.strip().lower().replace("_", "")
        if word and word not in (*words, *ignored):
            raise unknown("name", name.strip(), words)
        wanted.append(COLLNET if word in ignored else word)
    given = frozenset(wanted) & {*words, *((COLLNET,) if ignored else ())}
    return frozenset(words) - given if names.startswith("^") else given


def _whole(least: int, most: int) -> Scalar[int]:
    """A whole number, or its text, as environment variables have it."""
    kind = whole(least, most)

    def read(value: object) -> int:
        is_text = isinstance(value, str) and re.fullmatch(r" *[0-9]{1,12} *", value)
        return kind.read(int(str(value)) if is_text else value)

    return Scalar(kind.words, {**kind.schema, "type": ["integer", "string"]}, read)


def _flag(value: object) -> bool:
    """True or false, or 1 or 0 as environment variables have it; or the text of one."""
    words = {"true": True, "1": True, "false": False, "0": False}
    return FLAG.read(words.get(str(value).strip().lower(), value))


def _level(value: object) -> str:
    text = str(value).strip().upper()
    if re.fullmatch(r"[0-5]", text):
        return _OLD_LEVELS[int(text)]
    if text not in _LEVELS:
        raise unknown("level", str(value), _LEVELS)
    return text


def _devices(value: object) -> str:
    text = str(value).replace(" ", "")
    if text and not re.fullmatch(r"\^?=?[^,:^=]+(:[0-9]*)*(,[^,:^=]+(:[0-9]*)*)*", text):
        raise ValueError(f"must be devices such as mlx5_0,mlx5_3:1, got {quote(value)}")
    return text


_DEVICES = Scalar(
    "devices by what their names begin with, =exactly, or ^those to leave out",
    {"type": "string", "examples": ["=mlx5_0,mlx5_3", "^mlx5_1"]}, _devices,
)  # fmt: skip
_PATHS = Scalar(f"one of {', '.join(_LEVELS)}", {"type": ["string", "integer"]}, _level)
_FLAG = Scalar("true or false", {"type": ["boolean", "integer", "string"]}, _flag)
_VERSION = Scalar("a version such as 2.18", {"type": "string", "examples": ["2.18"]}, _version)
_TUNER = Scalar("a file", {"type": "string"}, lambda value: load_tuner(str(value)))


def _check(values: FieldValues, faults: Faults, path: str) -> None:
    for what in ("NCHANNELS", "CTAS"):
        low, high = values[f"NCCL_MIN_{what}"], values[f"NCCL_MAX_{what}"]
        faults.check(
            not low or not high or low <= high,
            inside(path, f"NCCL_MIN_{what}"),
            f"must be at most the maximum, {high}",
        )


SETTINGS = Format(
    "nccl",
    "NCCL's environment variables, with NCCL's names and words.",
    Field(
        "version", _VERSION, "The version of NCCL, or of RCCL, which has NCCL's numbers.",
        default_words="{}.{}, of RCCL {}.{}".format(*CURRENT, *CURRENT_RCCL),
    ),
    Field(
        "NCCL_ALGO",
        _filter(ALGORITHMS, _COLLNET),
        "Algorithms that NCCL may choose: `Ring`, `^NVLS`, or `Ring;allreduce:Tree`.",
    ),
    Field("NCCL_PROTO", _filter(PROTOCOLS), "Protocols that NCCL may choose, written alike."),
    Field("NCCL_MIN_NCHANNELS", _whole(1, 64), "Fewest channels of rings and trees."),
    Field("NCCL_MAX_NCHANNELS", _whole(1, 64), "Most channels of rings and trees."),
    Field("NCCL_MIN_CTAS", _whole(1, 64), "Fewest channels, those of NVLS too."),
    Field("NCCL_MAX_CTAS", _whole(1, 64), "Most channels, those of NVLS too."),
    Field("NCCL_NVLS_NCHANNELS", _whole(1, 64), "Channels of NVLS."),
    Field(
        "NCCL_NTHREADS", _whole(64, 512),
        "Most threads of a channel by LL and by Simple, of rings and trees.",
    ),
    Field(
        "NCCL_BUFFSIZE", _whole(1 << 12, 1 << 30), "Bytes of the buffer of Simple.",
        default_words="4194304",
    ),
    Field("NCCL_NVLS_ENABLE", _whole(0, 2), "0 switches NVLink SHARP off.", default_words="2"),
    Field("NCCL_P2P_DISABLE", _whole(0, 1), "1 sends through the host.", default_words="0"),
    Field(
        "NCCL_P2P_LEVEL", _PATHS, "The farthest path over which GPUs copy directly.",
        default_words="PXB",
    ),
    Field(
        "NCCL_NET_GDR_LEVEL", _PATHS, "The farthest path to a NIC that reads GPU memory.",
        default_words="PXB",
    ),
    Field(
        "NCCL_IB_HCA", _DEVICES,
        "NICs of InfiniBand and RoCE that several machines use: `mlx5_0,mlx5_3`, `=mlx5_1:1`.",
    ),
    Field(
        "NCCL_SOCKET_IFNAME", _DEVICES,
        "NICs of TCP that several machines use, if any has such a name.",
    ),
    Field(
        "NCCL_COLLNET_ENABLE", _whole(0, 1),
        "1 lets switches of the network sum all-reduces where they can (SHARP).",
        default_words="0",
    ),
    Field(
        "RCCL_MSCCL_ENABLE", _whole(0, 1),
        "0 leaves MSCCL's kernels out, which RCCL up to 2.27 takes on eight GPUs of a node.",
        default_words="1",
    ),
    Field(
        "NCCL_CROSS_NIC", _whole(0, 2),
        "Whether rings may leave a node by another NIC than they came in by; 2 if faster.",
        default_words="2",
    ),
    Field(
        "NCCL_PXN_DISABLE", _whole(0, 1),
        "1 has no GPU send by the NIC of another, over NVLink.", default_words="0",
    ),
    Field(
        "NCCL_P2P_NET_CHUNKSIZE", _whole(1 << 10, 1 << 30),
        "Bytes of a chunk that send and receive move over the network.", default_words="131072",
    ),
    Field(
        "symmetric", _FLAG,
        "True where applications register the buffers of all ranks as symmetric windows (2.27):"
        " all-reduces, all-gathers and reduce-scatters among GPUs that NVLinks join then run"
        " symmetric kernels.",
        default_words="false",
    ),
    Field(
        "registered", _FLAG,
        "True where applications register their buffers (ncclCommRegister): from 2.23 on, blocks"
        " of NCCL write to those of peers within a machine, and none copies out what it receives."
        " RCCL's do not.",
        default_words="false",
    ),
    Field(
        "NCCL_CTA_POLICY", _whole(0, 2),
        "2 has copy engines move all-gathers and all-to-alls of symmetric windows (2.28), so that"
        " they take no SM; 1 (fewer SMs) does what 0 does.",
        default_words="0",
    ),
    Field("tuner", _TUNER, "A CSV file of NCCL's example tuner plugin, applied first."),
    check=_check,
    refused=NOT_MODELLED,
    idle=IDLE,
)  # fmt: skip

_FIELDS = {
    "version": "version", "NCCL_ALGO": "algorithms", "NCCL_PROTO": "protocols",
    "NCCL_MIN_NCHANNELS": "min_channels", "NCCL_MAX_NCHANNELS": "max_channels",
    "NCCL_MIN_CTAS": "min_ctas", "NCCL_MAX_CTAS": "max_ctas",
    "NCCL_NVLS_NCHANNELS": "nvls_channels", "NCCL_NTHREADS": "threads",
    "NCCL_PXN_DISABLE": "pxn_disable",
    "NCCL_BUFFSIZE": "buffer", "NCCL_NVLS_ENABLE": "nvls", "NCCL_COLLNET_ENABLE": "collnet",
    "RCCL_MSCCL_ENABLE": "msccl",
    "NCCL_P2P_DISABLE": "p2p_disable",
    "NCCL_P2P_LEVEL": "p2p_level", "NCCL_NET_GDR_LEVEL": "gdr_level",
    "NCCL_IB_HCA": "ib_hca", "NCCL_SOCKET_IFNAME": "socket_ifname",
    "NCCL_CROSS_NIC": "cross_nic", "NCCL_P2P_NET_CHUNKSIZE": "p2p_net_chunk",
    "symmetric": "symmetric", "registered": "registered", "NCCL_CTA_POLICY": "cta_policy",
    "tuner": "tuner",
}  # fmt: skip

DEFAULTS = Settings()


def settings_of(values: FieldValues, base: Settings = DEFAULTS) -> Settings:
    """The settings that a table states, over `base`."""
    given = {_FIELDS[key]: values[key] for key in values.given - values.faulty if key in _FIELDS}
    flags = {
        name: bool(value)
        for name, value in given.items()
        if isinstance(getattr(DEFAULTS, name), bool)
    }
    return replace(base, **given | flags)


def _is_default(name: str, value: object) -> bool:
    """Whether a variable that is not modelled says what NCCL does unless it is told."""
    return name in NOT_MODELLED and name.endswith("_DISABLE") and str(value).strip() == "0"


def read_settings(table: object, faults: Faults, path: str, base: Settings = DEFAULTS) -> Settings:
    """The settings of a table, with each fault noted. Old names stand for new ones, and what is
    not modelled may say that it is not disabled.
    """
    if isinstance(table, Mapping):
        table = {k: v for k, v in table.items() if not _is_default(k, v)}
        table = {RENAMED.get(k, k): v for k, v in table.items() if RENAMED.get(k) not in table}
    return settings_of(SETTINGS.read(table, faults, path), base)


def read_assignments(lines: Iterable[tuple[str, str]], faults: Faults) -> Mapping[str, Any]:
    """`NAME=value` texts, each with its place, as a table. A name stands there once."""
    found: dict[str, Any] = {}
    for place, line in lines:
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            faults.add(place, f"must be NAME=value, got {quote(line)}")
        elif found.setdefault(key, value) != value:
            faults.add(place, f"{key} is {quote(found[key])} and {quote(value)}; give one of them")
    return found


def without(settings: Settings, variable: str) -> Settings:
    """Settings without one of their variables."""
    name = _FIELDS[variable]
    return replace(settings, **{name: getattr(DEFAULTS, name)})


def assignments(settings: Settings) -> dict[str, str]:
    """The variables that say how settings differ from NCCL's defaults. What an application does,
    and the tuner's file, are none.
    """
    found = {}
    for variable, name in _FIELDS.items():
        value = getattr(settings, name)
        if variable in ("version", "tuner", *_OF_APPLICATIONS) or value == getattr(DEFAULTS, name):
            continue
        found[variable] = (
            ";".join(_filter_text(each, collnet=settings.collnet) for each in value)
            if name in ("algorithms", "protocols")
            else str(int(value) if isinstance(value, bool) else value)
        )
    return found


def _filter_text(part: tuple[str, frozenset[str]], *, collnet: bool) -> str:
    collective, words = part
    words = words - {COLLNET} | {*(_COLLNET[1:] if collnet and COLLNET in words else ())}
    return f"{collective.replace('_', '')}:" * bool(collective) + ",".join(sorted(words))


def load_conf(path: str) -> Mapping[str, Any]:
    """The table of an nccl.conf: `NAME=value` lines.

    Raises `InputError` for lines of another form.
    """
    faults = Faults(path)
    lines = enumerate(read_text(Path(path), InputError).split("\n"), 1)
    kept = [(f"line {i}", line) for i, line in lines if line.strip() and line.strip()[0] != "#"]
    table = read_assignments(kept, faults)
    faults.raise_any()
    return table
