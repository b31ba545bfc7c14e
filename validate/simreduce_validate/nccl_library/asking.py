"""Runs NCCL's library on a machine: a process for each node, connected over the loopback."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from simreduce import units
from simreduce.computing.own_files import scratch_folder
from simreduce.errors import InputError, InternalError, TopologyError
from simreduce.files.formats.syntax import Element, read_xml
from simreduce.planners.nccl import facts
from simreduce.topology import Topology, load_topology
from simreduce.topology.elements import OFF
from simreduce.topology.importers import to_nccl_xml
from simreduce.topology.importers.nccl_xml import SWITCH_CLASS
from simreduce.topology.importers.parts import SUMMED_BY_SWITCHES, leaves_simple
from simreduce.topology.loader import copies_of, machine_of
from simreduce_validate.nccl_library.answers import LibraryAnswer
from simreduce_validate.nccl_library.log import read_log
from simreduce_validate.nccl_library.tools import Tools

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
SIZES = tuple(1 << k for k in (10, 13, 16, 19, 22, 25, 28, 30))
"""Bytes from 1 KiB to 1 GiB."""
_PATIENCE = 1200.0
"""Seconds for all calls on all nodes; a node takes ten on an idle machine."""
_FIXED = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,COLL",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_TUNER_PLUGIN": "fake",
    # No kernel takes work out of this queue, so it has to hold that of all calls.
    "NCCL_WORK_FIFO_BYTES": str(1 << 28),
}
NODE_BYTES = 2 * 10**9
"""Memory that a node takes at most."""
MOST_GPUS = 64
"""GPUs of a fake node (fake_machine.h)."""


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A node as NCCL reads it: the text of its file, bus ids of its GPUs, and `environment`, which
    tells the fakes the rest (fake_machine.h, network_plugin.c).
    """

    xml: str
    gpus: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def shape(self) -> str:
        """The file without models of GPUs, and names and latencies of NICs: they decide nothing on
        one node.
        """
        return re.sub(r' (vendor|device|name|latency)="[^"]*"', "", self.xml)


def fake_node(machine: Topology, nodes: int = 1) -> FakeNode:
    """The node that stands for a machine, or for each of several; NCCL reads its export.

    Raises `TopologyError` if NCCL's format has no place for the machine.
    """
    nics = [node for node in machine.nodes.values() if node.kind == "nic"]
    if nodes > 1 and not all(nic.network for nic in nics):
        raise TopologyError(
            f"{machine.name}: say the `network` of its NICs, which NCCL takes for 10 Gbit/s without"
        )
    xml = to_nccl_xml(machine)
    root = read_xml(xml, machine.name, TopologyError)
    found = [(pci, gpu) for pci in _below(root) if pci.tag == "pci" for gpu in pci.all("gpu")]
    if not found:
        raise TopologyError(f"{machine.name}: there is no GPU to ask for")
    if len(found) > MOST_GPUS:
        raise TopologyError(
            f"{machine.name}: {len(found)} GPUs; a fake node has {MOST_GPUS} at most"
        )
    if any(gpu.get("gcn") for _, gpu in found):
        raise TopologyError(f"{machine.name}: its GPUs are AMD's, and NCCL's library is NVIDIA's")
    found.sort(key=lambda pair: int(pair[1].get("dev")))
    gpus = tuple(pci.get("busid") for pci, _ in found)
    capabilities = {int(gpu.get("sm") or facts(machine).capability) for _, gpu in found}
    if len(capabilities) > 1:
        several = " and ".join(f"{each / 10:.1f}" for each in sorted(capabilities))
        raise TopologyError(
            f"{machine.name}: its GPUs have compute capabilities {several}; a fake node has one"
        )
    capability = capabilities.pop()
    switched = any(
        link.get("tclass") == SWITCH_CLASS for _, gpu in found for link in gpu.all("nvlink")
    )
    peer = all(node.peer != OFF for node in machine.nodes.values() if node.kind == "gpu")
    environment = {
        "FAKE_GPUS": ",".join(gpus),
        "FAKE_CAPABILITY": str(capability),
        "FAKE_PEER": str(int(peer)),
        "FAKE_MULTICAST": str(int(switched and capability >= SUMMED_BY_SWITCHES)),
    }
    if nets := sorted(_nics(root)):
        environment |= {"FAKE_NICS": ";".join(text for _, text in nets), "NCCL_NET_PLUGIN": "fake"}
    if nodes > 1 and leaves_simple(machine):
        environment["NCCL_PROTO"] = "Simple"  # as the network's own plugin sets it
    return FakeNode(xml, gpus, environment)


def _below(element: Element) -> list[Element]:
    return [element, *(each for child in element.children for each in _below(child))]


def _nics(root: Element) -> list[tuple[int, str]]:
    """Each net by its number, with what the network plugin says of it."""
    return [
        (
            (dev := int(net.get("dev", "0"))),
            "|".join(
                (
                    net.get("name"), above.get("busid", "none"), net.get("speed", "0"),
                    net.get("port", "1"), net.get("guid", hex(0x1000 + dev)),
                    net.get("latency", "0"), net.get("gdr", "1"),
                )
            ),
        )
        for above in _below(root)
        for nic in above.all("nic")
        for net in nic.all("net")
    ]  # fmt: skip


def fake_nodes(machine: str) -> tuple[FakeNode, int]:
    """One node of a machine such as `dgx-h100x2`, and how many it has.

    Raises `TopologyError` for one that cannot be asked for.
    """
    if "," in machine:
        raise TopologyError(f"{machine}: nodes are asked for with their own NICs, without options")
    nodes = copies_of(machine)
    node = fake_node(load_topology(machine_of(machine)), nodes)
    if nodes * len(node.gpus) == 1:
        raise TopologyError(f"{machine}: one GPU has nothing to send")
    return node, nodes


def check_memory(machine: str, nodes: int) -> None:
    """Raise `InputError` if so many nodes take more memory than is available."""
    found = ""
    with suppress(OSError):
        found = Path("/proc/meminfo").read_text("ascii")
    available = re.search(r"^MemAvailable: *(\d+) kB", found, re.MULTILINE)
    if available and nodes * NODE_BYTES > (has := int(available[1]) * 1024):
        takes = f"{units.plural(nodes, 'node')} take {nodes * NODE_BYTES / 1e9:.0f} GB of memory"
        raise InputError(f"{machine}: {takes}, and {has / 1e9:.1f} GB are available")


def ask(
    machine: str,
    tools: Tools,
    settings: Mapping[str, str] | None = None,
    sizes: Sequence[int] = SIZES,
    collectives: Sequence[str] = COLLECTIVES,
) -> LibraryAnswer:
    """What NCCL's library would do on a machine, such as `dgx-h100x2` for two nodes.

    `settings` are NCCL's variables. A call of each collective at each size is asked for, sizes
    rounded down to whole elements of every rank. Raises `TopologyError` as `fake_nodes` does, and
    `InputError` where the library fails, or lacks the memory.
    """
    (node, nodes), settings = fake_nodes(machine), settings or {}
    check_memory(machine, nodes)
    ranks = nodes * len(node.gpus)
    rounded = dict.fromkeys(max(size // (4 * ranks), 1) * 4 * ranks for size in sizes)
    calls = [f"{collective}:{nbytes}" for collective in collectives for nbytes in rounded]
    with scratch_folder("nccl-ask-") as scratch:
        folder = Path(scratch)
        _run(node, nodes, tools, settings, folder, calls)
        with (folder / "out.0").open(encoding="utf-8", errors="replace") as lines:
            today = datetime.now(UTC).date().isoformat()
            return read_log(lines, node.gpus, machine=machine, asked=today, settings=settings)


def _run(
    node: FakeNode, nodes: int, tools: Tools, settings: Mapping[str, str], folder: Path,
    calls: Sequence[str],
) -> None:  # fmt: skip
    """Run all nodes to their end; what the first says is in `out.0`."""
    (folder / "machine.xml").write_text(node.xml, "utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")}
    common = {
        **kept, **_FIXED, **node.environment, **settings,
        "ASK_PARENT": str(os.getpid()),
        "LD_LIBRARY_PATH": str(tools.folder),
        "NCCL_TOPO_FILE": str(folder / "machine.xml"),
    }  # fmt: skip
    local = len(node.gpus)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for i in range(nodes):
            command = [tools.folder / "ask", tools.library, local * nodes, local * i, folder]
            with (
                (folder / f"out.{i}").open("wb") as out,
                (folder / f"error.{i}").open("wb") as error,
            ):
                processes.append(
                    subprocess.Popen(  # noqa: S603 - built here
                        [*map(str, command), *calls],
                        stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                        env={**common, "NCCL_HOSTID": f"node{i}"},
                    )
                )  # fmt: skip
        _wait(processes, folder)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        _remove_shared(folder)


def _remove_shared(folder: Path) -> None:
    """Remove the files in /dev/shm that a library left: up to a GB of memory."""
    for names in folder.glob("made.*"):
        for name in names.read_text("utf-8").split():
            if name.startswith("/dev/shm/nccl-"):  # noqa: S108 - NCCL's own place
                Path(name).unlink(missing_ok=True)


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end:
            raise InputError(f"NCCL's library: no answer after {_PATIENCE:.0f} s")
        if any(process.returncode for process in processes):
            break
        time.sleep(0.05)
    for i, process in enumerate(processes):
        if process.returncode:
            raise InputError(f"NCCL's library: {_why(folder, i, process.returncode)}")


def _why(folder: Path, node: int, status: int) -> str:
    """Why a node failed: what a fake refused, else NCCL's last warning."""
    error = (folder / f"error.{node}").read_text("utf-8", "replace")
    if found := re.search(r"^(REFUSED|FAILED) (.*)", error, re.MULTILINE):
        warnings = re.findall(r"NCCL WARN (.*)", _said(folder, node))
        words = f"the fakes do not know {found[2]}" if found[1] == "REFUSED" else found[2]
        return "; ".join([words, *warnings[:1]])
    if status < 0:
        return f"signal {-status} ended node {node}, which may lack memory"
    raise InternalError(f"node {node} ended with {status}: {error[-500:]}")


def _said(folder: Path, node: int) -> str:
    return (folder / f"out.{node}").read_text("utf-8", "replace")
