"""Hosts by the switches above them, from whatever file says so.

Reads JSON of AWS's DescribeInstanceTopology: `aws ec2 describe-instance-topology`.

An instance has `NetworkNodes`, the topmost layer first; instances with the same last one are
nearest (Amazon EC2 User Guide, "How Amazon EC2 topology works",
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-topology-works.html).

Reads JSON of `gcloud compute instances list` or `describe`: where instances are.

`resourceStatus.physicalHostTopology` has the cluster, the block and the sub-block of an instance;
those of a sub-block are nearest (Compute Engine API, ResourceStatusPhysicalHostTopology,
https://cloud.google.com/compute/docs/reference/rest/v1/instances).

Reads what `ibnetdiscover` prints: every switch and every channel adapter, with their ports.

A paragraph begins with `Switch` or `Ca`, the number of ports, a GUID, and a description in quotes
behind a #; lines with ports follow, each with the GUID at the other end (ibnetdiscover(8),
infiniband-diags of rdma-core,
https://manpages.ubuntu.com/manpages/noble/man8/ibnetdiscover.8.html).

Hosts whose adapters are on the same switches are together below these; switches that are linked to
the same other switches are together below those.

Reads Slurm's topology.conf, and what `scontrol show topology` prints.

A line has a switch, and the nodes or switches below it; of a switch with both, the nodes are those
of the switches below (topology.conf(5), https://slurm.schedmd.com/topology.conf.html). A block
(`BlockName`) is read as a switch, and blocks that are one at a larger size (`AggregatedBlock`) as a
switch above them. Of topology.yaml (topology.yaml(5), Slurm 25.05) the topology of the cluster is
read, or else the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from simreduce.errors import TopologyError, did_you_mean, nearest, quote
from simreduce.files.formats import Name
from simreduce.files.formats.syntax import Faults, read_json
from simreduce.topology.elements import expand_hosts

_ROW = ("InstanceId", "NetworkNodes")
_AWS_MORE = ("InstanceType", "GroupName", "AvailabilityZone", "ZoneId", "CapacityBlockId")
"""What else an instance has."""


def is_aws(text: str) -> bool:
    """Whether a text is such JSON."""
    return text.lstrip().startswith("{") and any(f'"{key}"' in text for key in ("Instances", *_ROW))


def read_aws(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The network nodes above each instance."""
    found = faults.require(faults.attempt("", read_json, text, "no JSON"), TopologyError)
    found = faults.respell("", found, ("Instances",), ("NextToken",))
    rows = found.get("Instances", "")
    if not faults.check(
        isinstance(rows, list),
        "Instances",
        "must be a list" if "Instances" in found else "missing",
    ):
        return {}
    faults.check(
        not found.get("NextToken"),
        "NextToken",
        "this is one page of several; have them all in one file",
    )
    hosts: dict[Name, tuple[str, ...]] = {}
    layers = 0
    for place, given in enumerate(rows):
        where = f"Instances[{place}]"
        row = faults.respell(where, given if isinstance(given, dict) else {}, _ROW, _AWS_MORE)
        name = row.get("InstanceId")
        if not faults.check(isinstance(name, str) and name, f"{where}.InstanceId", "missing"):
            continue
        nodes = row.get("NetworkNodes", "")
        good = isinstance(nodes, list) and all(isinstance(each, str) and each for each in nodes)
        if not faults.check(
            good and nodes, f"{where}.NetworkNodes", f"must list the network nodes above {name}"
        ):
            continue
        layers = layers or len(nodes)
        faults.check(
            len(nodes) == layers,
            f"{where}.NetworkNodes",
            f"has {len(nodes)} layers, others have {layers}",
        )
        faults.check(name not in hosts, where, f"{name} is there twice")
        if host := faults.attempt(f"{where}.InstanceId", Name, name):
            hosts[host] = tuple(nodes)
    return hosts


_STATUS, _TOPOLOGY = "resourceStatus", "physicalHostTopology"
_LEVELS = ("cluster", "block", "subblock")


def is_gcp(text: str) -> bool:
    """Whether a text is such JSON."""
    known = (_STATUS, _TOPOLOGY)
    return text.lstrip()[:1] in ("[", "{") and any(f'"{key}"' in text for key in known)


def read_gcp(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The cluster, block and sub-block of each instance."""
    rows = faults.require(faults.attempt("", read_json, text, "no JSON"), TopologyError)
    hosts: dict[Name, tuple[str, ...]] = {}
    for place, given in enumerate(rows if isinstance(rows, list) else [rows]):
        where = f"[{place}]"
        row = faults.respell(where, given if isinstance(given, dict) else {}, (_STATUS,))
        name = row.get("name")
        if not faults.check(isinstance(name, str) and name, f"{where}.name", "missing"):
            continue
        status, at = row.get(_STATUS), f"{where}.{_STATUS}"
        status = faults.respell(at, status if isinstance(status, dict) else {}, (_TOPOLOGY,))
        topology, at = status.get(_TOPOLOGY, ""), f"{at}.{_TOPOLOGY}"
        if not faults.check(isinstance(topology, dict), at, f"missing for {name}"):
            continue
        topology = faults.respell(at, topology, _LEVELS, ("host",))
        levels = [topology.get(key) for key in _LEVELS]
        for key, value in zip(_LEVELS, levels, strict=True):
            faults.check(isinstance(value, str) and value, f"{at}.{key}", f"missing for {name}")
        faults.check(name not in hosts, where, f"{name} is there twice")
        if host := faults.attempt(f"{where}.name", Name, name):
            hosts[host] = tuple(str(value) for value in levels)
    return hosts


_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*(?:#\s*"([^"]*)")?')
_PORT = re.compile(r'^\[\s*\d+\]\S*\s+"([^"]+)"\s*\[')
_ADAPTER = re.compile(r"[\s_-]+(HCA-?\d+|mlx\d+_\d+|mlx\d+_bond_?\d+)\b.*$")
_IN_SWITCH = "Aggregation Node"
"""In the description of an adapter that is part of a switch."""


class _Device(NamedTuple):
    kind: str
    name: str
    line: int
    ends: list[str]


def is_ib_net_discover(text: str) -> bool:
    """Whether a text is such output."""
    return bool(re.search(r'^(Switch|Ca)\s+\d+\s+"[SH]-', text, re.MULTILINE))


def read_ib_net_discover(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The switches above each host: those above its own, then its own."""
    devices = _devices(text, faults)
    switches = {guid: each for guid, each in devices.items() if each.kind == "Switch"}
    leaves: dict[Name, set[str]] = {}
    for each in devices.values():
        if each.kind != "Ca" or _IN_SWITCH in each.name:
            continue
        host = _ADAPTER.sub("", each.name).strip() or each.name
        if not faults.check(
            host, f"line {each.line}", "this adapter has no description to tell its host by"
        ):
            continue
        for end in each.ends:
            faults.check(
                end in switches,
                f"line {each.line}",
                f"{host} is linked to {end}, which is no switch here",
            )
        if not each.ends:
            continue  # a port that is down
        if name := faults.attempt(f"line {each.line}", Name, host):
            leaves.setdefault(name, set()).update(end for end in each.ends if end in switches)
    below = set().union(*leaves.values()) if leaves else set()
    hosts: dict[Name, tuple[str, ...]] = {}
    for host, own in leaves.items():
        over = {end for leaf in own for end in switches[leaf].ends if end in switches} - below
        hosts[host] = tuple(_label(path, switches) for path in (over, own) if path)
    return hosts


def _devices(text: str, faults: Faults) -> dict[str, _Device]:
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if head := _HEAD.match(line):
            kind, guid, about = head[1], head[2], head[3] or ""
            faults.check(guid not in devices, f"line {number}", f"{guid} is there twice")
            current = devices[guid] = _Device(kind, about, number, [])
        elif line.startswith("["):
            port = _PORT.match(line)
            if port is None or current is None:
                faults.add(f"line {number}", f"no port of a device: {quote(line)}")
            else:
                current.ends.append(port[1])
    return devices


def _label(guids: set[str], switches: Mapping[str, _Device]) -> str:
    """The names of switches, in one word."""
    return "+".join(sorted(_short(switches[guid].name, guid) for guid in guids))


def _short(about: str, guid: str) -> str:
    """`leaf1` of `MF0;leaf1:MQM8700/U1`; the GUID of a switch whose description is that of all."""
    match = re.match(r"MF\d+;([^:]+)", about)
    name = match[1] if match else about
    return guid if not name or "Technologies" in name or " " in name else name


_PAIR = re.compile(r"(\w+)=(\S*)")
_NOTHING = ("", "(null)")
_HEADS = ("SwitchName", "BlockName", "AggregatedBlock")
_BELOW = ("Switches", "Nodes")
_SLURM_MORE = ("LinkSpeed", "Level", "BlockSize", "BlockSizes", "BlockIndex")
"""What else a line has."""
_KNOWN = {key.lower(): key for key in (*_HEADS, *_BELOW, *_SLURM_MORE)}


def is_slurm(text: str) -> bool:
    """Whether a text is one of both."""
    heads = dict.fromkeys(re.findall(r"^\s*(\w+)=", text, re.MULTILINE))
    return any(nearest(head, _HEADS) for head in heads)


def read_slurm(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The switches above each host."""
    nodes: dict[str, list[Name]] = {}
    below: dict[str, list[str]] = {}
    several: list[str] = []
    for number, line in enumerate(re.sub(r"\\\n", " ", text).splitlines(), 1):
        found = _PAIR.findall(line.partition("#")[0])
        pairs = {_KNOWN.get(key.lower(), key): value for key, value in found}
        if not pairs or pairs.keys() <= {"BlockSizes"}:
            continue
        where = f"line {number}"
        head = _HEADS if not pairs.keys() & {*_HEADS} else ()
        pairs = faults.respell(where, pairs, (*head, *_BELOW), (*_HEADS, *_SLURM_MORE))
        if "AggregatedBlock" in pairs:
            several.append(pairs["AggregatedBlock"])
            continue
        name = pairs.get("SwitchName", pairs.get("BlockName", ""))
        if not faults.check(name, where, "has no SwitchName"):
            continue
        if not faults.check(
            name not in nodes and name not in below, where, f"there are two switches named {name}"
        ):
            continue
        used = next((key for key in _BELOW if pairs.get(key, "") not in _NOTHING), "")
        faults.check(used, where, f"{name} has neither Nodes nor Switches")
        members = (faults.attempt(where, expand_hosts, pairs[used]) if used else None) or []
        if used == "Switches":
            below[name] = members
        else:
            names = [faults.attempt(where, Name, each) for each in members]
            nodes[name] = [each for each in names if each is not None]
    above = dict(_above(nodes, below, faults))
    lists = {name: faults.attempt("", expand_hosts, name) or [] for name in several}
    for name, blocks in sorted(lists.items(), key=lambda pair: len(pair[1])):
        known = [block for block in blocks if block in nodes]
        for missing in (block for block in blocks if block not in nodes):
            faults.add("", f"{name} has a block {missing}, and no line is about that")
        for top in dict.fromkeys(_path(block, above, faults)[0] for block in known):
            above[top] = name
    hosts: dict[Name, tuple[str, ...]] = {}
    for name, own in nodes.items():
        path = _path(name, above, faults)
        for host in own:
            if host in hosts:
                faults.add("", f"{host} is below both {hosts[host][-1]} and {name}")
            hosts[host] = path
    return hosts


def is_slurm_yaml(text: str) -> bool:
    """Whether a text is a topology.yaml."""
    return re.search(r"^\s*(- )?(topology|tree|block):", text, re.MULTILINE) is not None


def read_slurm_yaml(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The switches or blocks above each host, as lines of topology.conf would have them."""
    import yaml  # noqa: PLC0415 - for these files alone

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        faults.add("", f"is no YAML: {' '.join(str(error).split())}")
        return {}
    listed = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    if not faults.check(listed, "", "must be a list of topologies"):
        return {}
    chosen = next((each for each in listed if each.get("cluster_default") is True), listed[0])
    lines = list[str]()
    for kind, key, head, below in (
        ("tree", "switches", "switch", {"children": "Switches", "nodes": "Nodes"}),
        ("block", "blocks", "block", {"nodes": "Nodes"}),
    ):
        table = chosen.get(kind)
        rows = table.get(key) if isinstance(table, dict) else None
        for row in rows if isinstance(rows, list) else ():
            given = row if isinstance(row, dict) else {}
            parts = [f"{head.title()}Name={given.get(head, '')}"]
            parts += [f"{word}={given[part]}" for part, word in below.items() if given.get(part)]
            lines.append(" ".join(parts))
    name = quote(str(chosen.get("topology", "")))
    if not faults.check(lines, "", f"topology {name} has neither a tree nor blocks"):
        return {}
    return read_slurm("\n".join(lines), faults)


def _above(
    nodes: Mapping[str, list[Name]], below: Mapping[str, list[str]], faults: Faults
) -> Mapping[str, str]:
    """The switch above each switch."""
    above: dict[str, str] = {}
    for name, parts in below.items():
        for part in parts:
            if part not in nodes and part not in below:
                near = did_you_mean(part, [*nodes, *below])
                faults.add("", f"{name} has a switch {part}, and no line is about that{near}")
            elif part in above:
                faults.add("", f"{part} is below both {above[part]} and {name}")
            else:
                above[part] = name
    return above


def _path(name: str, above: Mapping[str, str], faults: Faults) -> tuple[str, ...]:
    path = [name]
    while path[-1] in above:
        if not faults.check(above[path[-1]] not in path, "", f"{above[path[-1]]} is above itself"):
            break
        path.append(above[path[-1]])
    return tuple(path[::-1])


Switches = tuple[str, ...]
"""The switches above a host, the topmost first; equal ones are shared."""

READERS: tuple[
    tuple[Callable[[str], bool], Callable[[str, Faults], Mapping[Name, Switches]]], ...
] = (
    (is_aws, read_aws),
    (is_gcp, read_gcp),
    (is_ib_net_discover, read_ib_net_discover),
    (is_slurm, read_slurm),
    (is_slurm_yaml, read_slurm_yaml),
)
READ = (
    "the output of `ibnetdiscover`, Slurm's topology.conf, topology.yaml or `scontrol show "
    "topology`, JSON of `aws ec2 describe-instance-topology` or of `gcloud compute instances list`"
)


def read_hosts(text: str, name: str) -> Mapping[Name, Switches]:
    """The switches above each host in a file, whose content says what it is.

    Raises `TopologyError` with every fault.
    """
    faults = Faults(name)
    text = text.lstrip("\ufeff")
    read = next((read for fits, read in READERS if fits(text)), None)
    if read is None:
        raise TopologyError(f"{name}: none of {READ}")
    found = read(text, faults)
    faults.check(found or faults.problems, "", "names no host")
    faults.raise_any(TopologyError)
    return found
