"""Reads JSON of AWS's DescribeInstanceTopology: `aws ec2 describe-instance-topology`.

An instance has `NetworkNodes`, the topmost layer first; instances with the same last one are
nearest (Amazon EC2 User Guide, "How Amazon EC2 topology works",
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-topology-works.html).
"""

from __future__ import annotations

from collections.abc import Mapping

from simreduce.errors import InputError
from simreduce.files.formats import Faults
from simreduce.files.formats.json import read_json
from simreduce.files.names import Name

_ROW = ("InstanceId", "NetworkNodes")
_MORE = ("InstanceType", "GroupName", "AvailabilityZone", "ZoneId", "CapacityBlockId")
"""What else an instance has."""


def is_aws(text: str) -> bool:
    """Whether a text is such JSON."""
    return text.lstrip().startswith("{") and any(f'"{key}"' in text for key in ("Instances", *_ROW))


def read_aws(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The network nodes above each instance."""
    try:
        found = read_json(text, "no JSON")
    except InputError as error:
        faults.add("", error)
        return {}
    found = faults.respell("", found, ("Instances",), ("NextToken",))
    rows = found.get("Instances")
    if not isinstance(rows, list):
        faults.add("Instances", "must be a list" if "Instances" in found else "missing")
        return {}
    if found.get("NextToken"):
        faults.add("NextToken", "this is one page of several; have them all in one file")
    hosts: dict[Name, tuple[str, ...]] = {}
    layers = 0
    for place, given in enumerate(rows):
        where = f"Instances[{place}]"
        row = faults.respell(where, given if isinstance(given, dict) else {}, _ROW, _MORE)
        name = row.get("InstanceId")
        if not isinstance(name, str) or not name:
            faults.add(f"{where}.InstanceId", "missing")
            continue
        nodes = row.get("NetworkNodes")
        good = isinstance(nodes, list) and all(isinstance(each, str) and each for each in nodes)
        if not good or not nodes:
            faults.add(f"{where}.NetworkNodes", f"must list the network nodes above {name}")
            continue
        layers = layers or len(nodes)
        if len(nodes) != layers:
            faults.add(f"{where}.NetworkNodes", f"has {len(nodes)} layers, others have {layers}")
        if name in hosts:
            faults.add(where, f"{name} is there twice")
        if host := faults.attempt(f"{where}.InstanceId", Name, name):
            hosts[host] = tuple(nodes)
    return hosts
