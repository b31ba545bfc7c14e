"""Reads JSON of `gcloud compute instances list` or `describe`: where instances are.

`resourceStatus.physicalHostTopology` has the cluster, the block and the sub-block of an instance;
those of a sub-block are nearest (Compute Engine API, ResourceStatusPhysicalHostTopology,
https://cloud.google.com/compute/docs/reference/rest/v1/instances).
"""

from __future__ import annotations

from collections.abc import Mapping

from simreduce.errors import InputError
from simreduce.files.formats import Faults
from simreduce.files.formats.json import read_json
from simreduce.files.names import Name

_STATUS, _TOPOLOGY = "resourceStatus", "physicalHostTopology"
_LEVELS = ("cluster", "block", "subblock")


def is_gcp(text: str) -> bool:
    """Whether a text is such JSON."""
    known = (_STATUS, _TOPOLOGY)
    return text.lstrip()[:1] in ("[", "{") and any(f'"{key}"' in text for key in known)


def read_gcp(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The cluster, block and sub-block of each instance."""
    try:
        rows = read_json(text, "no JSON")
    except InputError as error:
        faults.add("", error)
        return {}
    hosts: dict[Name, tuple[str, ...]] = {}
    for place, given in enumerate(rows if isinstance(rows, list) else [rows]):
        where = f"[{place}]"
        row = faults.respell(where, given if isinstance(given, dict) else {}, (_STATUS,))
        name = row.get("name")
        if not isinstance(name, str) or not name:
            faults.add(f"{where}.name", "missing")
            continue
        status, at = row.get(_STATUS), f"{where}.{_STATUS}"
        status = faults.respell(at, status if isinstance(status, dict) else {}, (_TOPOLOGY,))
        topology, at = status.get(_TOPOLOGY), f"{at}.{_TOPOLOGY}"
        if not isinstance(topology, dict):
            faults.add(at, f"missing for {name}")
            continue
        topology = faults.respell(at, topology, _LEVELS, ("host",))
        levels = [topology.get(key) for key in _LEVELS]
        for key, value in zip(_LEVELS, levels, strict=True):
            if not isinstance(value, str) or not value:
                faults.add(f"{at}.{key}", f"missing for {name}")
        if name in hosts:
            faults.add(where, f"{name} is there twice")
        if host := faults.attempt(f"{where}.name", Name, name):
            hosts[host] = tuple(str(value) for value in levels)
    return hosts
