"""The `[nccl]` table of a calibration: what NCCL's collectives cost besides the wires."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.engine.calibrate.sure import COLLECTIVES
from simreduce.engine.calibration import (
    LINK_KINDS,
    MISFIT,
    NVLS,
    PROTOCOLS,
    KernelConstants,
    NcclConstants,
)
from simreduce.files.formats import (
    BANDWIDTH,
    LATENCY,
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    TableOf,
    number,
    whole,
)

_SHARE = number(0.001, 1.5)
KERNELS = Format(
    "nccl.kernels",
    "Costs of kernels whose GPUs read and write each other's memory: `oneshot`, `twoshot`,"
    " `multimem`, `symmetric`. What is left out keeps its default.",
    Field("launch", LATENCY, "From the last GPU's arrival to the kernel."),
    Field("barrier", LATENCY, "Of a barrier of all GPUs."),
    Field("release", LATENCY, "More of one after which others read what was written."),
    Field("release_multicast", LATENCY, "The same, of what a switch multicasts."),
    Field("load", LATENCY, "Until the first bytes of a read arrive."),
    Field("flag", LATENCY, "Until bytes with flags beside them are seen."),
    Field("block", BANDWIDTH, "Bytes a second that 512 threads move at most, a load each under"
          " way."),
    Field("efficiency", MapOf(_SHARE, LINK_KINDS, "LINK"),
          "Part of a link's achievable rate, flags included, by link."),
    Field("engine_launch", LATENCY, "From the last GPU's arrival to copies by copy engines."),
    Field("engine_copy", LATENCY, "More of it for each GPU."),
    Field("engine_multicast_launch", LATENCY, "The same, where a switch multicasts."),
    Field("engine_multicast_copy", LATENCY, "More of it for each GPU."),
    Field("engine_rate", BANDWIDTH, "Bytes a second that a GPU's copy engines move."),
)  # fmt: skip
_BY_PROTOCOL = ", by protocol: simple, ll, ll128"
NCCL = Format(
    "nccl",
    "Costs of NCCL's collectives. What is left out keeps its default. LINK is nvlink, pci, shm (the"
    " host's memory, without peer access), net or nvls.",
    Field("launch", LATENCY, "From the last GPU's arrival to the first step, with a process for"
          " each GPU."),
    Field("launch_each", LATENCY, "More of it for each GPU of a machine that one process drives."),
    Field("launch_channel", LATENCY, "More of it for each channel of a collective."),
    Field("post", LATENCY, "What a process takes to issue a send or a receive."),
    Field("message", LATENCY, "Of a GPU's proxy thread, for each message over a network."),
    Field("start", MapOf(LATENCY, (*PROTOCOLS, NVLS), "PROTOCOL"),
          f"More of it{_BY_PROTOCOL}, nvls."),
    Field("latency", MapOf(MapOf(LATENCY, PROTOCOLS, "PROTOCOL"), LINK_KINDS, "LINK"),
          f"Of a step, by link{_BY_PROTOCOL}."),
    Field("efficiency", MapOf(MapOf(_SHARE, PROTOCOLS, "PROTOCOL"), LINK_KINDS, "LINK"),
          f"Part of a link's achievable rate, flags of the protocol included{_BY_PROTOCOL}."),
    Field("slice", MapOf(LATENCY, LINK_KINDS, "LINK"),
          "What a block of Simple takes for a slice besides moving it, by link."),
    Field("copy_out", MapOf(number(0.0, 10.0), LINK_KINDS, "LINK"),
          "Of the time of a send to a block that does not send on, how long its next send waits, by"
          " link."),
    Field("join", MapOf(LATENCY, PROTOCOLS, "PROTOCOL"),
          f"More of a step over a network in a tree{_BY_PROTOCOL}."),
    Field("channel_rate", MapOf(BANDWIDTH, (*PROTOCOLS, NVLS), "PROTOCOL"),
          f"Bytes of data a second that one channel moves at most{_BY_PROTOCOL}, nvls."),
    Field("unaligned_peer", BANDWIDTH,
          "Bytes a second that a user's send by Simple moves at most where the parts of ranks begin"
          " at no multiple of 16 bytes.", default_words="unlimited"),
    Field("kernels", TableOf(KERNELS), "Costs of kernels without channels."),
    Field("measured", MapOf(ListOf(whole(2), 1), COLLECTIVES, "COLLECTIVE"),
          "The numbers of GPUs whose times of a collective, on this very machine, the constants are"
          " fitted to: `all_reduce = [8]`."),
    Field("misfit", number(0.0, 100.0), "How far off these times were before the fit: the root mean"
          " square of log(predicted / measured). Intervals widen with it.", MISFIT),
)  # fmt: skip
_PLAIN = ("launch", "launch_each", "launch_channel", "post", "message")
_LIMIT = "unaligned_peer"
_BY_NAME = ("start", "slice", "copy_out", "join", "channel_rate")
_PAIRED = ("latency", "efficiency")


def read_nccl(table: FieldValues) -> NcclConstants:
    """The constants of a table that `NCCL` has read."""
    found = NcclConstants()
    plain = {key: table[key] for key in (*_PLAIN, _LIMIT) if table[key] is not None}
    for key in _BY_NAME:
        plain[key] = {**getattr(found, key), **(table[key] or {})}
    for key in _PAIRED:
        given = {
            (link, protocol): value
            for link, values in (table[key] or {}).items()
            for protocol, value in values.items()
        }
        plain[key] = {**getattr(found, key), **given}
    if table["kernels"] is not None:
        plain["kernels"] = _read_kernels(table["kernels"])
    measured = {name: tuple(counts) for name, counts in (table["measured"] or {}).items()}
    return replace(found, **plain, measured=measured, misfit=table["misfit"])


def _read_kernels(table: FieldValues) -> KernelConstants:
    found = KernelConstants()
    given = {key: value for key, value in table.items() if value is not None}
    given["efficiency"] = {**found.efficiency, **(table["efficiency"] or {})}
    return replace(found, **given)


def _write_kernels(constants: KernelConstants) -> dict[str, Any]:
    """The table that reads as the constants; empty for the defaults."""
    before = KernelConstants()
    keys = [key for key in KERNELS.keys if getattr(constants, key) != getattr(before, key)]
    table = {key: getattr(constants, key) for key in keys}
    for key in keys:
        if key in ("block", "engine_rate"):
            table[key] = units.exact_bandwidth(table[key])
        elif key != "efficiency":
            table[key] = units.exact_duration(table[key])
    return table


def write_nccl(constants: NcclConstants) -> dict[str, Any]:
    """The table that reads as the constants; empty for the defaults."""
    before = NcclConstants()
    if constants == before:
        return {}
    table: dict[str, Any] = {
        key: units.exact_duration(getattr(constants, key))
        for key in _PLAIN
        if getattr(constants, key) != getattr(before, key)
    }
    if constants.unaligned_peer != before.unaligned_peer:
        table[_LIMIT] = units.exact_bandwidth(constants.unaligned_peer)
    for key in (*_BY_NAME, *_PAIRED):
        for parts, value in getattr(constants, key).items():
            if getattr(before, key).get(parts) != value:
                *path, last = (key, parts) if isinstance(parts, str) else (key, *parts)
                inner = functools.reduce(lambda at, part: at.setdefault(part, {}), path, table)
                inner[last] = _exact(key)(value)
    if kernels := _write_kernels(constants.kernels):
        table["kernels"] = kernels
    if constants.measured:
        table["measured"] = {name: list(counts) for name, counts in constants.measured.items()}
        table["misfit"] = constants.misfit
    return table


def _exact(key: str) -> Callable[[float], object]:
    if key in ("start", "slice", "join", "latency"):
        return units.exact_duration
    return units.exact_bandwidth if key == "channel_rate" else float


def nccl_names(constants: NcclConstants | None = None) -> dict[str, float]:
    """Every constant by its dotted name in the file, in SI units."""
    found = constants or NcclConstants()
    names = {f"nccl.{key}": getattr(found, key) for key in _PLAIN}
    for key in (*_BY_NAME, *_PAIRED):
        for parts, value in getattr(found, key).items():
            path = (parts,) if isinstance(parts, str) else parts
            names[".".join(("nccl", key, *path))] = value
    return names


def with_values(base: NcclConstants, values: Mapping[str, float]) -> NcclConstants:
    """The constants with some others by their dotted names. KeyError for a name there is not."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        key, *parts = name.removeprefix("nccl.").split(".")
        if name not in nccl_names(base):
            raise KeyError(name)
        if parts:
            own = changed.setdefault(key, dict(getattr(base, key)))
            own[parts[0] if len(parts) == 1 else tuple(parts)] = value
        else:
            changed[key] = value
    return replace(base, **changed)
