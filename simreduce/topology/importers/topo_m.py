"""The table of `nvidia-smi topo -m`: read as a machine, and written of one.

The cells determine a PCIe tree that would print the same table: PIX devices share a switch, PXB
joins switches below another one, PHB and NODE join the devices of one CPU, and SYS (SOC in old
versions) separates sockets. A pair with NVLink does not say where its GPUs are attached; the NICs,
the CPU affinities and the other pairs do. A device that remains open goes to the first socket that
nothing contradicts.

A machine is described in its words: how near two devices are, and beside the table tolls, reach and
equal paths.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simreduce import units
from simreduce.computing import group_by
from simreduce.errors import TopologyError, quote
from simreduce.files.formats import Name, is_name
from simreduce.files.formats.syntax import Faults
from simreduce.files.launchers import without_colours
from simreduce.topology.elements import (
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    OFF,
    LinkClass,
    joined,
    link_classes,
    natural,
)
from simreduce.topology.graph import Topology, build
from simreduce.topology.importers.parts import (
    MODELS,
    ON_GRACE,
    UNKNOWN,
    USUAL_SOCKETS,
    GpuModel,
    MachineBuilder,
    host_joined_by,
    without_nvlinks,
)
from simreduce.topology.routing import XGMI, is_nvlink, links_name, path_kind
from simreduce.topology.routing.rules import EqualMachines

NO_PATH = "-"
MOST_ROWS = 64
"""Upper limit of rows shown. Nobody reads a larger matrix."""
_FEW = 16
_COUNTED = 256
"""Upper limit of rows whose cells are counted: it takes long."""

_LEGEND = {
    "X": "Self",
    "NET": "Connection that leaves the machine, or crosses a network link",
    "SYS": "Connection traversing PCIe as well as the interconnect between sockets "
    "(e.g. QPI or UPI)",
    "PHB": "Connection traversing PCIe as well as a PCIe host bridge (typically the CPU)",
    "PXB": "Connection traversing several PCIe switches without a PCIe host bridge",
    "PIX": "Connection traversing at most a single PCIe switch",
    "NV#": "Connection traversing a bonded set of # NVLinks",
    "XGMI#": "Connection traversing a bonded set of # xGMI links",
    NO_PATH: "No connection: GPUs do not forward traffic for others",
}


def path_class(topology: Topology, a: str, b: str) -> str:
    """How traffic from `a` to `b` goes: X, NV#, XGMI#, PIX, PXB, PHB, SYS, NET, or "-" when it
    cannot.

    Raises `TopologyError` for a name that the topology does not have.
    """
    for name in (a, b):
        if name not in topology.nodes:
            topology.router.path(name, name)
    if a == b:
        return "X"
    path = topology.router.find_path(a, b)
    if not path:
        return NO_PATH
    used = [topology.router.link(*hop) for hop in itertools.pairwise(path)]
    kind = path_kind([topology.nodes[name] for name in path], used)
    if kind != "NV":
        return kind
    word = "XGMI" if used[0].link_class.startswith(XGMI) else "NV"
    return f"{word}{_nvlink_lanes(topology, a, b, direct=len(path) == 2)}"


def _nvlink_lanes(topology: Topology, a: str, b: str, *, direct: bool) -> int:
    """Lanes of the `direct` NVLinks between two devices, or the fewer of theirs to NVSwitches."""
    lanes = {a: 0, b: 0}
    for end in (a, b):
        for _, target, key in topology.graph.out_edges(end, keys=True):
            wanted = target in (a, b) if direct else topology.nodes[target].kind == "nvswitch"
            if wanted and is_nvlink(topology.links[key]):
                lanes[end] += topology.links[key].lanes
    return min(lanes.values())


def matrix_text(topology: Topology) -> str:
    """The table of `nvidia-smi topo -m` over GPUs and NICs, tab-separated, with the legend of what
    occurs.

    Above `MOST_ROWS` it has the rows of the first of equal machines, or else the first few rows,
    under a line that says so, and which cells the others have.
    """
    nics = [node.name for node in topology.nodes.values() if node.kind == "nic"]
    nics.sort(key=lambda name: (natural(topology.nodes[name].machine), natural(name)))
    names = [*topology.devices, *nics]
    if len(names) <= MOST_ROWS:
        return _table(topology, names)
    few, what = _excerpt(topology, names)
    note = f"{what[0]}; the whole matrix has {len(names)} rows, and at most {MOST_ROWS} are shown."
    return f"{note}{what[1]}\n\n{_table(topology, few)}"


def _excerpt(topology: Topology, names: list[str]) -> tuple[list[str], tuple[str, str]]:
    """Some of the names, the words for which, and a sentence on the cells of the others."""
    rule = topology.router.rule
    if isinstance(rule, EqualMachines):
        own, other = list(group_by(names, lambda name: topology.nodes[name].machine).values())[:2]
        if len(own) <= MOST_ROWS:
            between = f" Between two machines: {_cells(topology, own, other)}."
            return own, (f"The first of {rule.count} equal machines", between)
    all_of = f" In all: {_cells(topology, names, names)}." if len(names) <= _COUNTED else ""
    return names[:_FEW], (f"The first {_FEW} rows and columns", all_of)


def _cells(topology: Topology, rows: list[str], columns: list[str]) -> str:
    """How many rows have how many of which cells."""
    kinds = Counter(
        tuple(sorted(Counter(path_class(topology, row, name) for name in columns).items()))
        for row in rows
    )
    return units.first_few([
        f"{units.plural(count, 'row')} of {' + '.join(f'{n} {word}' for word, n in cells)}"
        for cells, count in kinds.items()
    ])  # fmt: skip


def _table(topology: Topology, names: list[str]) -> str:
    heads = [name.upper() if name in topology.devices else name for name in names]
    rows = [[path_class(topology, a, b) for b in names] for a in names]
    seen = {re.sub(r"(?<=NV|MI)[0-9]+$", "#", cell) for row in rows for cell in row}
    lines = ["\t".join(["", *heads])]
    lines += ["\t".join([head, *row]) for head, row in zip(heads, rows, strict=True)]
    width = max(4, *map(len, seen))
    legend = [f"  {word:<{width}} = {text}" for word, text in _LEGEND.items() if word in seen]
    return "\n".join([*lines, "", "Legend:", "", *legend]) + "\n"


_MOST_SEARCHED = 64
"""Most GPUs whose NICs are searched."""


def nic_classes(machine: Topology) -> dict[str, int]:
    """How many NICs a machine has for each class of network, "" where none is stated."""
    return dict(Counter(n.network for n in machine.nodes.values() if n.kind == "nic"))


def parts_line(machine: Topology) -> str:
    """`8 GPUs, 4 ib_edr`: how many GPUs, and how many NICs of which class of network."""
    nics = [f"{count} {name or 'NIC'}" for name, count in nic_classes(machine).items()]
    return ", ".join([units.plural(len(machine.devices), "GPU"), *(nics or ["no NIC"])])


def figure_lines(machine: Topology) -> list[str]:
    """The tolls of staged copies, a line for each kind of node, and of single pairs."""
    return list(dict.fromkeys(_figures(machine)))


def rule_lines(machine: Topology) -> list[str]:
    """How far GPUs reach without a host, and which of equal paths are taken: what is not the
    default.
    """
    return list(dict.fromkeys(_rules(machine)))


def _rules(machine: Topology) -> Iterator[str]:
    gpus = [machine.nodes[name] for name in machine.devices]
    for gpu in gpus:
        if gpu.peer != DEFAULT_REACH:
            yield f"peer access: {_up_to(gpu.peer)}, else by way of the host"
    for reach in dict.fromkeys(gpu.gpudirect for gpu in gpus):
        mine = [
            gpu.name for gpu in gpus if gpu.gpudirect == reach and gpu.machine == gpus[0].machine
        ]
        far = [name for name in mine[:_MOST_SEARCHED] if machine.router.nics_beyond(name)]
        if far or reach != DEFAULT_NIC_REACH:
            which = (
                ", ".join(far) if len(far) < 3 or len(far) < len(mine) else f"{far[0]} to {far[-1]}"
            )
            detour = f"; {which}: no NIC so near, so to a network by way of the host" if far else ""
            yield f"GPUDirect RDMA: {_up_to(reach)}{detour or ', else by way of the host'}"
    if machine.router.choice:
        yield f"equal paths: {machine.router.choice}"


def _up_to(reach: str) -> str:
    words = {OFF: "none", DEFAULT_NIC_REACH: "up to PXB or over C2C, as in NCCL"}
    return words.get(reach, f"up to {reach}")


def _figures(machine: Topology) -> Iterator[str]:
    for link in machine.links[::2]:
        if not link.is_toll:
            continue
        rate, delay = units.format_bandwidth(link.bandwidth), units.format_duration(link.latency)
        if link.source == link.target:
            where = machine.nodes[link.source].kind.replace("_", " ")
            yield f"copies through the host, at a {where}: {link.link_class}, {rate}, {delay}"
        else:
            yield f"copies between {link.source} and {link.target}: {rate}, {delay}"


_CELL = re.compile(r"X|(NV|XGMI)[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|C2C")
_LINKS = re.compile(r"(NV|XGMI)([0-9]{1,3})")
_NUMA, _MOST_NUMA = "numa", 8
"""Before the number of a NUMA node, in place of cores; and NUMA nodes of two sockets (NPS4, SNC4).
"""
_NEAR = {"X": 0, "PIX": 1, "PXB": 2, "PHB": 3, "NODE": 3, "SYS": 4, "SOC": 4}
_MOST, _MOST_COMPARED = 512, 96
"""Devices of the largest table, and how many of them are compared with what is made of it."""

_UNKNOWN_AMD = replace(UNKNOWN, nvlink="xgmi_cdna3", pcie="pcie5_x16")

MOST_CHARACTERS = 1 << 20

CONTRADICTION = "no machine prints this table"
"""Begins the note on a table that contradicts itself."""


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """Cells by row and column, and what names the CPU of each device, "" where that is unknown."""

    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    affinity: tuple[str, ...]

    @property
    def gpus(self) -> list[int]:
        return [i for i, name in enumerate(self.names) if name.startswith("GPU")]

    def near(self, i: int, j: int) -> int | None:
        """How near the two are on PCIe, None if the table does not say."""
        return _NEAR.get(self.cells[i][j])

    def are_apart(self, i: int, j: int) -> bool:
        """Whether the two are on different CPUs by their cell or, on AMD, by their NUMA nodes."""
        nodes = {self.affinity[i], self.affinity[j]} - {""}
        return self.near(i, j) == 4 or (self.xgmi and len(nodes) > 1)

    def nvlinks(self, i: int, j: int) -> int:
        match = _LINKS.fullmatch(self.cells[i][j])
        return int(match[2]) if match else 0

    @property
    def xgmi(self) -> bool:
        """Whether its GPUs are AMD's."""
        return any(cell.startswith("XGMI") for row in self.cells for cell in row)


def read_topo_m(
    text: str,
    name: str,
    model: GpuModel | None = None,
    socket: tuple[str, int] | None = None,
    classes: Mapping[str, LinkClass] | None = None,
) -> tuple[Topology, list[str]]:
    """Return the machine of a table, and notes on what was assumed.

    `model` gives the figures of the GPUs and their links; `socket` is the class and the number of
    links between CPUs, else those usual with the GPUs' PCIe generation; `classes` are the
    classes of links, the shipped ones unless given. Raises `TopologyError` with every fault.
    """
    faults = Faults(name)
    faults.check(
        len(text) <= MOST_CHARACTERS,
        "",
        f"more than {MOST_CHARACTERS >> 20} MiB: no table of `nvidia-smi topo -m` is as long",
    )
    faults.raise_any(TopologyError)
    table = _read(text, faults)
    return machine_of(table, name, "nvidia-smi topo -m", faults, model, socket, classes)


def machine_of(
    table: TopologyMatrix,
    name: str,
    program: str,
    faults: Faults,
    model: GpuModel | None,
    socket: tuple[str, int] | None,
    classes: Mapping[str, LinkClass] | None,
) -> tuple[Topology, list[str]]:
    """The machine that would print a table of a `program`, and notes; see `read_topo_m`."""
    _check(table, faults)
    faults.raise_any(TopologyError)
    parts = MachineBuilder(classes or link_classes())
    if model is None:
        model = _UNKNOWN_AMD if table.xgmi else UNKNOWN
        like = "PCIe Gen5, xGMI links as of an" if table.xgmi else "PCIe Gen3, NVLinks as in a"
        first = "MI300X" if table.xgmi else "V100"
        parts.notes.append(f"no GPU model is given: {like} {first}, unlimited memory")
    if not model.name and table.xgmi and not model.nvlink.startswith(XGMI):
        model = replace(model, nvlink=_UNKNOWN_AMD.nvlink)
    usual = USUAL_SOCKETS.get(model.pcie.partition("_")[0], ("upi", 2))
    _tree(table, parts, model, socket or (ON_GRACE if model.on_grace else usual))
    _nvlinks(table, parts, model, faults)
    faults.raise_any(TopologyError)
    machine = build(
        name,
        f"{units.plural(len(table.gpus), 'GPU')}, from `{program}`",
        name,
        parts.nodes.values(),
        parts.cables,
    )
    return machine, [*parts.notes, *_contradictions(table, machine)]


def _contradictions(table: TopologyMatrix, machine: Topology) -> list[str]:
    """A note if no tree of switches and sockets prints the table; it names the first bad pair."""
    names = [name.lower() if name.startswith("GPU") else name for name in table.names]
    alike = {"NODE": "PHB", "SOC": "SYS"}
    for i, a in enumerate(names[:_MOST_COMPARED]):
        for j, b in enumerate(names[:i]):
            cell = alike.get(table.cells[i][j], table.cells[i][j])
            made = path_class(machine, a, b)
            if cell not in (made, "C2C"):
                pair = (
                    f"{table.names[i]} is {cell} to {table.names[j]}, but by the others it "
                    f"would be {made}"
                )
                return [f"{CONTRADICTION}: {pair}"]
    return []


def _read(text: str, faults: Faults) -> TopologyMatrix:
    """The header, and a row for each of its devices."""
    lines = [line.rstrip() for line in without_colours(text).splitlines()]
    head = next(
        (n for n, line in enumerate(lines) if re.match(r"\s*GPU[0-9]", line) and not _is_row(line)),
        -1,
    )
    faults.check(
        head >= 0,
        "",
        "no line that begins the table: GPU0, GPU1, ... as `nvidia-smi topo -m` prints them",
    )
    faults.raise_any(TopologyError)
    names = _names(lines[head])
    faults.check(
        len(set(names)) == len(names) <= _MOST,
        f"line {head + 1}",
        f"a device twice, or more than {_MOST} devices",
    )
    faults.raise_any(TopologyError)
    has_numa = re.search(r"CPU Affinity\s+NUMA Affinity", lines[head]) is not None
    rows: dict[str, tuple[str, ...]] = {}
    affinity: dict[str, str] = {}
    for number, line in enumerate(lines[head + 1 :], head + 2):
        fields = line.split()
        if not fields or fields[0] not in names:
            if fields and rows and not line.startswith("#"):
                break
            continue
        cells = fields[1 : len(names) + 1]
        wrong = [cell for cell in cells if not _CELL.fullmatch(cell)]
        if len(cells) < len(names) or wrong:
            what = (
                f"{quote(wrong[0])} is no cell"
                if wrong
                else (
                    f"{units.plural(len(cells), 'cell')} for {units.plural(len(names), 'device')}"
                )
            )
            faults.add(f"line {number}", f"{what}: X, NV#, PIX, PXB, PHB, NODE or SYS")
        elif fields[0] in rows:
            faults.add(f"line {number}", f"a second row of {fields[0]}")
        rows[fields[0]] = tuple(cells)
        cores, numa = [*fields[len(names) + 1 : len(names) + 3], "", ""][:2]
        affinity[fields[0]] = f"{_NUMA}{numa}" if has_numa and numa.isdecimal() else cores
    lacking = [name for name in names if name not in rows]
    faults.check(not lacking, "", f"no row of {units.first_few(lacking, 1)}")
    named = _legend(lines, names)
    faults.raise_any(TopologyError)
    return TopologyMatrix(
        tuple(named[name] for name in names),
        tuple(rows[name] for name in names),
        tuple(affinity[name] for name in names),
    )


def _is_row(line: str) -> bool:
    fields = line.split()
    return len(fields) > 1 and _CELL.fullmatch(fields[1]) is not None


def _names(line: str) -> tuple[str, ...]:
    """The devices of the header: everything up to the first column that is none (CPU Affinity, NUMA
    Affinity).
    """
    return tuple(re.split(r"\s(?=CPU|NUMA)", line.strip())[0].split())


def _legend(lines: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The names of the NICs that the table calls NIC0, NIC1, ..., from its legend.

    Without a valid name in the legend, a NIC keeps its name of the table.
    """
    named = {name: name for name in names}
    for line in lines:
        match = re.fullmatch(r"\s*(NIC[0-9]+)\s*[:=]\s*(\S+)\s*", line)
        if match and match[1] in named and is_name(match[2]) and match[2] not in named.values():
            named[match[1]] = match[2]
    return named


def _check(table: TopologyMatrix, faults: Faults) -> None:
    """Faults of cells that contradict each other."""
    names = table.names
    faults.check(table.gpus, "", "no GPU in the table")
    for i, name in enumerate(names):
        faults.attempt("", Name, name)
        faults.check(table.cells[i][i] == "X", name, f"{table.cells[i][i]} to itself; it must be X")
        for j in range(i):
            one, other = table.cells[i][j], table.cells[j][i]
            same = one == other or {one, other} in ({"PHB", "NODE"}, {"SYS", "SOC"})
            faults.check(one != "X" and same, name, f"{one} to {names[j]}, but {other} back")


def _groups(members: Sequence[int], near: Callable[[int, int], bool]) -> list[list[int]]:
    """The parts of `members` that pairs join, in the order of their first."""
    pairs = (pair for pair in itertools.combinations(members, 2) if near(*pair))
    return [sorted(part) for part in joined(members, pairs)]


def _sockets(table: TopologyMatrix, parts: MachineBuilder) -> list[list[int]]:
    """Assign every device to a CPU.

    Two affinities are two CPUs, and any number of NUMA nodes as many, unless a cell has devices of
    both on one.
    """
    everything, given = range(len(table.names)), table.affinity
    other = [(i, j) for i, j in itertools.combinations(everything, 2) if given[i] != given[j]]
    known = [(i, j) for i, j in other if given[i] and given[j]]
    stated = {*given} - {""}
    several = len(stated) == 2 or all(each.startswith(_NUMA) for each in stated)
    apart = {*known} if several and all((table.near(i, j) or 4) == 4 for i, j in known) else set()

    def one_cpu(i: int, j: int) -> bool:
        near = table.near(i, j)
        same = bool(table.affinity[i]) and table.affinity[i] == table.affinity[j] and near is None
        return same or (near is not None and near < 4)

    sockets: list[list[int]] = []
    for part in _groups(everything, one_cpu):
        fits = [
            s for s in sockets
            if not any(table.are_apart(i, j) or {(i, j), (j, i)} & apart for i in part for j in s)
        ]  # fmt: skip
        if fits:
            fits[0].extend(part)
            parts.note(
                "the table does not say on which socket some devices hang; where nothing "
                "contradicts it is the first"
            )
        else:
            sockets.append(list(part))
    return [sorted(socket) for socket in sockets]


def _tree(
    table: TopologyMatrix, parts: MachineBuilder, model: GpuModel, socket: tuple[str, int]
) -> None:
    """Add CPUs, switches and devices, from the CPUs down."""
    names = [name.lower() if name.startswith("GPU") else name for name in table.names]
    sockets = _sockets(table, parts)
    for name in names:
        parts.add(name, *(("gpu", model) if name.startswith("gpu") else ("nic",)))
    for number, members in enumerate(sockets):
        cpu = parts.add(f"cpu{number}", "cpu")
        for chain in _groups(members, lambda i, j: (table.near(i, j) or 9) < 3):
            leaves = _groups(chain, lambda i, j: table.near(i, j) == 1)
            above = parts.add_switch(cpu, model.pcie) if len(leaves) > 1 else cpu
            for leaf in leaves:
                shared = len(leaf) > 1 or len(leaves) > 1
                below = parts.add_switch(above, model.pcie) if shared else above
                for i in leaf:
                    if model.on_grace and i in table.gpus:
                        parts.link(names[i], cpu, "c2c")
                    else:
                        parts.link(names[i], below, model.pcie)
    parts.link_cpus(*socket)
    if host := host_joined_by(*socket):
        numa = [int(each.removeprefix(_NUMA)) for each in table.affinity if each[:4] == _NUMA]
        # NUMA nodes of two sockets share the memory of these: 4 each at most. Higher numbers have
        # gaps, such as POWER9's 0 and 8.
        nodes = max(numa, default=0) + 1
        shares = nodes / 2 if 2 < nodes <= _MOST_NUMA else 1
        parts.take_cpus_for(replace(host, memory=host.memory / shares))
    for name, node in list(parts.nodes.items()):
        if node.kind == "pcie_switch" or (node.kind == "gpu" and not model.on_grace):
            parts.staging(name, model.pcie)


def _nvlinks(table: TopologyMatrix, parts: MachineBuilder, model: GpuModel, faults: Faults) -> None:
    """Cables between pairs, or ports of an NVSwitch where a GPU has not as many links as its pairs
    would need.
    """
    gpus = table.gpus
    links = {(i, j): table.nvlinks(i, j) for i in gpus for j in gpus if i != j}
    total = {i: sum(links[i, j] for j in gpus if i != j) for i in gpus}
    if not any(total.values()):
        return
    peers = {i: sum(bool(links[i, j]) for j in gpus if i != j) for i in gpus}
    neighbours = {i: {links[i, j] for j in gpus if i != j} for i in gpus}
    alike = all(len(counts) == 1 for counts in neighbours.values())
    if model.nvlink and model.nvlink.startswith(XGMI) != table.xgmi:
        word = "xGMI links" if table.xgmi else "NVLinks"
        able = [m.name for m in MODELS.values() if m.nvlink and bool(m.arch) == table.xgmi]
        faults.add(
            "",
            f"the table shows {word}, and a {model.name} has {links_name(model.nvlink)}; GPUs with "
            f"{word}: {', '.join(able)}",
        )
        return
    if not model.nvlink:
        # Without a model, a table of equal pairs is one of NVSwitches or of cables.
        all_links = max(total.values())
        cables = not alike or any(each.nvlinks == all_links for each in MODELS.values())
        shown = all_links if cables else max(links.values())
        faults.add("", without_nvlinks(model, shown, max(peers.values())))
        return
    for i in gpus:
        faults.check(
            not model.bridged or peers[i] <= 1,
            table.names[i],
            f"NVLinks to {peers[i]} GPUs, but a bridge of {model.name} joins two GPUs",
        )
    most = model.nvlinks or 6 * len(gpus)
    if (
        alike
        and not table.xgmi
        and (max(total.values()) > most or (not model.nvlinks and len(gpus) > 4))
    ):
        note = "every pair has as many NVLinks as a GPU: NVSwitches, one node"
        switch = parts.add_nvswitch(table.names[gpus[0]].lower(), note)
        for i in gpus:
            parts.link(table.names[i].lower(), switch, model.nvlink, max(neighbours[i]))
        return
    for i in gpus:
        faults.check(
            total[i] <= most,
            table.names[i],
            f"{total[i]} {links_name(model.nvlink)}, but a {model.name} has {most}",
        )
        for j in gpus:
            if i < j and links[i, j]:
                parts.link(
                    table.names[i].lower(), table.names[j].lower(), model.nvlink, links[i, j]
                )


def is_topo_m(text: str) -> bool:
    """Whether a text looks like the table."""
    lines = text[: MOST_CHARACTERS + 1].splitlines()
    head = any(without_colours(line).split(maxsplit=1)[:1] == ["GPU0"] for line in lines)
    return head and re.search(r"\b(X|PIX|SYS|NODE|PHB|(NV|XGMI)[0-9]+)\b", text) is not None
