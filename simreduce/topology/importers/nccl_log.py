"""The graph that NCCL's log prints (`NCCL_DEBUG_SUBSYS=GRAPH`), as its topology XML.

    === System : maxBw 48.0 totalBw 240.0 ===
    CPU/0-0 (1/2/-1)
    + PCI[24.0] - PCI/0-110000 (0)
                  + PCI[24.0] - GPU/0-100000 (0)
                                + NVL[240.0] - NVS/0-0
                  + PCI[24.0] - NIC/0-108000
                                + NET[25.0] - NET/0-0 (0/1000/1/25.000000)
    + SYS[16.0] - CPU/0-1
    ==========================================

NVIDIA/nccl src/graph/topo.cc prints it: rates in GB/s; numbers in hexadecimal, up to 2.20 without
the host's before them; architecture, vendor and model of a CPU, the rank of a GPU, the device of a
bridge, and the rate of a port. A PCIe link of NCCL has 0.75 GB/s a lane of Gen3 and twice as much a
generation. The log says no model of GPU: the sum of its NVLinks tells the generation, and RCCL's
`XGMI[48.0]` the target of AMD's compilers (ROCm/rccl src/graph/topo.h). Ports of NICs
are in logs of several nodes only.
"""

from __future__ import annotations

import itertools
import math
import re

from simreduce.errors import TopologyError
from simreduce.topology.importers.nccl_xml import CPU_CLASS, SWITCH_CLASS
from simreduce.topology.importers.parts import AMD, INTEL

SYSTEM = re.compile(r"NCCL INFO === System : ")
"""The title of a graph."""
_LINE = re.compile(r"(?P<rank>\S+:\d+:\d+ \[\d+\]) NCCL INFO (?P<text>.*)")
_NODE = re.compile(
    r"(?P<indent> *)(\+ (?P<link>[A-Z0-9]{3,4})\[(?P<rate>\d+\.\d)\] - )?"
    r"(?P<kind>[A-Z]{3})/([0-9A-Fa-f]+-)?(?P<id>[0-9A-Fa-f]+)( \((?P<about>[^)]*)\))?.*"
)
_ARCHES = {"2": "ppc64", "3": "arm64"}
_VENDORS = {"1": INTEL, "2": AMD}
_CPUS = {"1": "79", "2": "85", "3": "143", "4": "207"}
"""Model ids of Intel's generations, in the order of NCCL's: Broadwell to Emerald Rapids."""
_WITH_GEN5, _GEN5 = "17", 48.0
"""The model id of AMD's first generation with PCIe 5, and GB/s of 16 lanes of that."""
_LANE_OF_GEN3 = 0.75
"""GB/s of a PCIe lane."""
_GT_PER_S = {3: 8, 4: 16, 5: 32, 6: 64}
_GENERATIONS = ((20.0, 6, 70), (20.0, 12, 80), (20.6, 18, 90), (20.6, 12, 90), (40.1, 18, 100))
"""GB/s of an NVLink in NCCL, NVLinks of a GPU, and its compute capability."""
_RATES = {70: 20.0, 80: 20.0, 90: 20.6, 100: 40.1, 60: 18.0, 86: 12.0}
_TARGETS = {48.0: "gfx942", 36.0: "gfx90a"}
"""By GB/s of an XGMI link in RCCL."""
_MBIT_PER_S = 8000
"""Of a GB/s, as NCCL divides."""


def to_xml(text: str, name: str) -> str:
    """The topology XML of the first graph in a log; raises `TopologyError` without one.

    What the log does not say (kinds of GPUs and NICs, cores) is left out. A line of the log is the
    same line of the XML, for the faults that are found there.
    """
    lines = [_LINE.search(line) for line in text.splitlines()]
    first = next((line["rank"] for line in lines if line and SYSTEM.search(line[0])), "")
    own = [line["text"].rstrip() if line and line["rank"] == first else "" for line in lines]
    begin = next((i for i, line in enumerate(own) if line.startswith("=== System")), len(own))
    graph = itertools.takewhile(lambda line: not line.startswith("======"), own[begin + 1 :])
    nodes = [*([None] * (begin + 1)), *map(_NODE.fullmatch, graph)]
    if not any(node and node["kind"] == "CPU" for node in nodes):
        raise TopologyError(
            f"{name}: no graph of NCCL's in it; record with NCCL_DEBUG_SUBSYS=GRAPH"
        )
    return _Writer(nodes).text()


class _Writer:
    """Nested elements from the indents of lines, None for lines of no device."""

    def __init__(self, lines: list[re.Match[str] | None]) -> None:
        self._lines, nodes = lines, [node for node in lines if node]
        self._sm = _capability(nodes)
        xgmi = [float(node["rate"]) for node in nodes if node["link"] == "XGMI"]
        fit = (each for each in _TARGETS if xgmi and not any(rate % each for rate in xgmi))
        self._xgmi = next(fit, 0.0)
        gpus = [node for node in nodes if node["kind"] == "GPU" and node["about"]]
        ranks = sorted(int(node["about"]) for node in gpus if node["about"].isdecimal())
        self._amd = _WITH_GEN5 * any(
            n["link"] == "PCI" and float(n["rate"]) >= _GEN5 for n in nodes
        )
        self._dev = {str(rank): dev for dev, rank in enumerate(ranks)}

    def text(self) -> str:
        lines, open_tags = list[str](), list[tuple[int, str]]()
        for node in self._lines:
            line = "" if lines else '<system version="1">'
            if node:
                depth = -1 if not node["link"] else len(node["indent"])
                while open_tags and open_tags[-1][0] >= depth:
                    line += open_tags.pop()[1]
                head, tail = self._element(node)
                line += head
                if tail:
                    open_tags.append((depth, tail))
            lines.append(line)
        lines += [tail for _, tail in reversed(open_tags)]
        return "\n".join([*lines, "</system>"]) + "\n"

    def _element(self, node: re.Match[str]) -> tuple[str, str]:
        """What a line opens, and what closes it; links of a device have no inside."""
        kind, link, about = node["kind"], node["link"], (node["about"] or "").split("/")
        if kind == "CPU" and not link:
            arch, vendor, model = (*about, "", "", "")[:3]
            maker = _VENDORS.get(vendor, "")
            model = self._amd if maker == AMD else _CPUS.get(model, "")
            number, arch = int(node["id"], 16), _ARCHES.get(arch, "x86_64")
            head = f'<cpu numaid="{number}" arch="{arch}" vendor="{maker}" modelid="{model}">'
            return head, "</cpu>"
        if link == "PCI" and (kind != "GPU" or node["about"]):
            head = f'<pci busid="{_bus(node)}" {_width(float(node["rate"]))}'
            if kind == "GPU":
                dev = self._dev.get(node["about"], 0)
                sm = f' sm="{self._sm}"' if self._sm else ""
                sm = f' gcn="{_TARGETS[self._xgmi]}"' if self._xgmi else sm
                return f'{head} class="0x030200"><gpu dev="{dev}"{sm}>', "</gpu></pci>"
            if kind == "NIC":
                return f'{head} class="0x020700"><nic>', "</nic></pci>"
            return f'{head} class="0x060400">', "</pci>"
        if kind == "NET":
            speed = round(float(node["rate"]) * _MBIT_PER_S)
            return f'<net name="net{int(node["id"], 16)}" speed="{speed}"/>', ""
        if link == "XGMI":
            count = max(round(float(node["rate"]) / (self._xgmi or math.inf)), 1)
            return f'<xgmi target="{_bus(node)}" count="{count}" tclass="0x038000"/>', ""
        if link == "NVL":
            count = max(round(float(node["rate"]) / _RATES.get(self._sm, 20.0)), 1)
            target = {"NVS": ("ffff:00:00.0", SWITCH_CLASS), "CPU": ("ffff:ff:ff.0", CPU_CLASS)}
            bus, tclass = target.get(kind, (_bus(node), "0x030200"))
            return f'<nvlink target="{bus}" count="{count}" tclass="{tclass}"/>', ""
        if link == "C2C" and kind == "CPU":
            return f'<c2c bw="{round(float(node["rate"]) * 1000)}" count="1"/>', ""
        return "", ""


def _capability(nodes: list[re.Match[str]]) -> int:
    """The compute capability by the NVLinks of the first GPU that has some; 0 if none has."""
    rates = list[float]()
    for node in nodes:
        if node["link"] == "NVL":
            rates.append(float(node["rate"]))
        elif rates:
            break
    whole = sum(rates)
    fit = (sm for rate, links, sm in _GENERATIONS if math.isclose(rate * links, whole, abs_tol=0.6))
    part = (
        sm
        for sm, rate in _RATES.items()
        if rates and all(abs(math.remainder(each, rate)) < 0.15 for each in rates)
    )
    return next(fit, next(part, 0))


def _bus(node: re.Match[str]) -> str:
    """Domain, bus, device and function from one number."""
    number = int(node["id"], 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _width(rate: float) -> str:
    """The newest generation of 16 lanes that is no faster, else lanes of Gen3."""
    speed = max((g for g in _GT_PER_S if rate >= _LANE_OF_GEN3 * 16 * 2 ** (g - 3)), default=3)
    lanes = min(round(rate / (_LANE_OF_GEN3 * 2 ** (speed - 3))), 16) or 1
    return f'link_speed="{_GT_PER_S[speed]} GT/s PCIe" link_width="{lanes}"'
