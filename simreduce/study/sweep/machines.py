"""The text of a machine with other settings: more nodes, another fabric, another NIC.

Keys of one job or traffic by its name: `job.NAME.KEY` and `traffic.NAME.KEY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import Field, field_at
from simreduce.study.job_files import JOB, TRAFFIC
from simreduce.topology.generators import GENERATORS, split_inline
from simreduce.topology.generators.machines import FABRIC_KEYS, SETTINGS
from simreduce.topology.loader import find, is_cluster
from simreduce.topology.machine_files import read_document
from simreduce.training import STEP
from simreduce.training.mesh.mesh_table import MESH

NETWORK = tuple(key for key in (*SETTINGS, *FABRIC_KEYS) if key != "seed")
"""Settings of the network between machines. `seed` is also one of them, and is written
`topology.seed`: by itself it is that of the jitter.
"""
OF_SHAPES = ("bandwidth", "latency")
"""Settings of shapes such as `switch:8`."""
SHORT = ("machine", "nodes", *NETWORK, *OF_SHAPES)
"""Keys that need no `topology.` before them."""


def set_machine(text: str, settings: Mapping[str, str | int]) -> tuple[str, dict[str, str | int]]:
    """The text of a machine with these settings, and keys of its file that are overridden.

    One node has no network and none of its settings. InputError if the text cannot have the
    settings.
    """
    rest = {key: value for key, value in settings.items() if key not in ("machine", "nodes")}
    name, separator, nodes, own = _parts(text)
    if separator == "file":
        return text, dict(settings)
    if "machine" in settings:
        if separator == ":":
            raise InputError(f"machine: {quote(text)} is a shape without machines")
        name = str(settings["machine"])
        other = _parts(name)
        if other[1] not in ("", "file") or other[3]:
            raise InputError(f"machine: must name one machine, got {quote(name)}")
    if "nodes" in settings:
        nodes = str(settings["nodes"])
        if not nodes.isdecimal() or not int(nodes):
            raise InputError(f"nodes: must be a whole number of at least 1, got {quote(nodes)}")
    if separator == ":":
        own |= {key: str(value) for key, value in rest.items()}
        return _text(f"{name}:{nodes}", own), {}
    network = (*NETWORK, "seed")
    own |= {key: str(value) for key, value in rest.items() if key in network}
    if "fabric" in rest:  # the settings of another fabric do not suit it
        own = {k: v for k, v in own.items() if k not in FABRIC_KEYS or k in rest}
    overrides = {key: value for key, value in rest.items() if key not in network}
    if nodes == "" or ("nodes" in settings and nodes == "1"):
        return name, overrides
    return _text(f"{name}x{nodes}", own), overrides


def is_single(text: str) -> bool:
    """Whether a text names one machine, which a network may join with others of its kind."""
    return _parts(text)[1] == ""


def _parts(text: str) -> tuple[str, str, str, dict[str, str]]:
    """Return name, separator, number and settings.

    `dgx1v` has no separator, and the file of a cluster has "file".
    """
    if (place := find(text)) is not None:
        return text, "file" if is_cluster(read_document(*place).tables) else "", "", {}
    for separator in ":x":
        inline = split_inline(text, separator)
        if inline is not None and (separator == "x" or inline.name in GENERATORS):
            return inline.name, separator, inline.size, dict(inline.settings)
    return text, "", "", {}


def _text(head: str, settings: Mapping[str, str]) -> str:
    return ",".join([head, *(f"{key}={value}" for key, value in settings.items())])


FORMATS = {"job": JOB, "traffic": TRAFFIC}


def key_of_job(document: Mapping[str, Any], section: str, text: str) -> str:
    """`job[0].count` of the text `a.count` behind `job.`, if the first job is named `a`.

    Names stand as they are, blanks and dots included; of several that fit, the longest is meant.
    InputError for a name or a key that there is not.
    """
    names = [each["name"] for each in document.get(section, ())]
    if not (fitting := [name for name in names if f"{text}.".startswith(f"{name}.")]):
        name = text.partition(".")[0]
        near = did_you_mean(name, names) or f"; there are {', '.join(map(quote, names)) or 'none'}"
        raise InputError(f"no {section} is named {quote(name)}{near}")
    name = max(fitting, key=len)
    path = text[len(name) + 1 :]
    field_of_job(section, path)
    return f"{section}[{names.index(name)}].{path}"


def field_of_job(section: str, path: str) -> Field:
    """The field at a path of a job or traffic. InputError if there is none."""
    table, dot, rest = path.partition(".")
    if (section, table, dot) == ("job", "step", "."):
        return field_at(rest, STEP, MESH)
    return field_at(path, FORMATS[section])


def split_key(key: str) -> tuple[str, int, str] | None:
    """The section, the place there and the path of such a key; None for others."""
    section, bracket, rest = key.partition("[")
    place, _, path = rest.partition("].")
    return (section, int(place), path) if bracket and section in FORMATS else None
