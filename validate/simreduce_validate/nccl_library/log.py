"""Reads what NCCL's library says: its log of level INFO, and the lines of `ask` between."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simreduce.errors import InternalError
from simreduce_validate.nccl_library.answers import AnsweredCall, AnsweredGraph, LibraryAnswer

_ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
PAIRS = tuple(f"{algorithm}+{protocol}" for algorithm in _ALGORITHMS for protocol in _PROTOCOLS)
"""Algorithms and protocols in the order of the library's tables."""
_COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
_NEVER = 1e30
"""Microseconds of what the library rules out; it also says -1."""
_PATTERNS = {1: "tree", 2: "split_tree", 3: "plain_tree", 4: "ring", 5: "nvls"}
"""Patterns with a use here, by their numbers."""

_INFO = re.compile(r":(\d+:\d+) \[\d+\] NCCL INFO (.*)")
_ASKED = "ASKED "
_SYSTEM = re.compile(r"=== System : maxBw ([\d.]+) totalBw ([\d.]+)")
_GRAPH = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\S+),"
    r" sameChannels (\d+)"
)
_CHANNEL_OF_GRAPH = re.compile(r"\s*\d+ : (?:GPU|NET|NVS)")
_GPU, _NIC = re.compile(r"GPU/(\S+)"), re.compile(r"NET/(?:\w+-)?(\w+)")
_RING = re.compile(r"Channel (\d+)/\d+ :((?:\s+\d+)+)\s*$")
_TREE = re.compile(r"\[(\d+)\] [-\d/]+->(\d+)->(-?\d+)")
_COUNTS = re.compile(
    r"\d+ coll channels, (?:\d+ collnet channels, )?(\d+) nvls channels, (\d+) p2p channels,"
    r" (\d+) p2p channels per peer"
)
_CELL = re.compile(r"(-?[\d.]+)/\s*(-?[\d.]+)")
_CHOICE = re.compile(
    r"(?:\w+: )?\d+ Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?"
)


def _named(text: str, names: Sequence[str]) -> str:
    """What a log names by number, or in words: `NVLS_TREE`."""
    return names[int(text)] if text.isdecimal() else text.lower().replace("_", "")


@dataclass
class _Reading:
    """What the lines so far said. `numbers` are places of GPUs by the numbers of their bus ids."""

    numbers: Mapping[int, int]
    version: str = ""
    system: tuple[float, float] = (0.0, 0.0)
    graphs: list[AnsweredGraph] = field(default_factory=list)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    parents: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    counts: tuple[int, ...] | None = None
    cells: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    calls: list[AnsweredCall] = field(default_factory=list)
    ended: bool = False

    def ask(self, words: Sequence[str]) -> None:
        """Take a line of `ask` (ask.c lists them)."""
        match words:
            case ("version", number):
                code = int(number)
                self.version = f"{code // 10000}.{code // 100 % 100}.{code % 100}"
            case ("call", collective, nbytes):
                self.calls.append(AnsweredCall(collective, int(nbytes)))
            case ("costs", *values):
                costs = zip(PAIRS, map(float, values), strict=False)
                self._note(costs_us={pair: value for pair, value in costs if 0 <= value < _NEVER})
            case ("estimate", value):
                self._note(estimate_us=float(value) if float(value) >= 0 else None)
            case ("kernel", _, blocks, threads):
                self._note(blocks=int(blocks), threads=int(threads))
            case ("end",):
                self.ended = True
            case _:
                raise InternalError(f"ask said {' '.join(words)!r}")

    def _note(self, **said: Any) -> None:
        self.calls[-1] = replace(self.calls[-1], **said)

    def choose(self, text: str) -> bool:
        """Take the choice of a call."""
        if found := _CHOICE.match(text):
            algorithm, protocol, first, last = found.groups()
            self._note(
                algorithm=_named(algorithm, _ALGORITHMS),
                protocol=_named(protocol, _PROTOCOLS),
                channels=int(last) - int(first) + 1 if last else None,
            )
        return bool(found)

    def first_rank(self, text: str) -> None:
        """Take a line of the thread of rank 0."""
        if found := _SYSTEM.match(text):
            self.system = float(found[1]), float(found[2])
        elif found := _GRAPH.match(text):
            number, crosses, channels, *speeds = found.groups()
            self.graphs.append(
                AnsweredGraph(
                    _PATTERNS.get(int(number), ""), int(channels), float(speeds[0]),
                    float(speeds[1]), speeds[2], crosses != "0", speeds[3] == "1", (), (),
                )
            )  # fmt: skip
        elif self.graphs and _CHANNEL_OF_GRAPH.match(text):
            gpus = tuple(map(self._place, _GPU.findall(text)))
            nics = tuple(int(number, 16) for number in _NIC.findall(text))
            last = self.graphs[-1]
            self.graphs[-1] = replace(last, gpus=(*last.gpus, gpus), nics=(*last.nics, nics))
        elif found := _RING.match(text):
            self.rings[int(found[1])] = tuple(map(int, found[2].split()))
        elif found := _COUNTS.search(text):
            self.counts = tuple(map(int, found.groups()))

    def _place(self, text: str) -> int:
        """The place of a GPU: its rank up to 2.20, later its bus id as a hexadecimal number."""
        return int(text) if text.isdecimal() and len(text) < 4 else self.numbers[
            int(text.rpartition("-")[2], 16)
        ]  # fmt: skip

    def any_rank(self, text: str) -> None:
        """Take a line of any thread: of parents, or of the table, which all print alike."""
        if text.startswith("Trees "):
            for channel, rank, parent in _TREE.findall(text):
                self.parents[int(channel)][int(rank)] = int(parent)
        head, *cells = (part.strip() for part in text.split("|"))
        name = next((n for n in _COLLECTIVES if n.replace("_", "") == head.lower()), None)
        if name and cells and len(self.cells[name]) < len(PAIRS):
            self.cells[name] += [cell for cell in cells if _CELL.fullmatch(cell)]

    def table(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Latency and bandwidth of each pair that a collective has."""
        return {
            name: {
                pair: (float(found[1]), float(found[2]))
                for pair, cell in zip(PAIRS, self.cells[name], strict=False)
                if (found := _CELL.fullmatch(cell)) and float(found[2]) > 0
            }
            for name in _COLLECTIVES
            if name in self.cells
        }


def read_log(
    lines: Iterable[str], bus_ids: Sequence[str], *, machine: str, asked: str,
    settings: Mapping[str, str],
) -> LibraryAnswer:  # fmt: skip
    """The answer of a whole log, whose node has GPUs with these bus ids.

    Raises `InternalError` if the log ends before all was asked.
    """
    numbers = {int(re.sub("[:.]", "", bus_id), 16): gpu for gpu, bus_id in enumerate(bus_ids)}
    reading = _Reading(numbers)
    said: list[tuple[str, str]] = []
    for line in lines:
        if _ASKED in line:
            reading.ask(line.partition(_ASKED)[2].split())
        elif (found := _INFO.search(line)) and not (reading.calls and reading.choose(found[2])):
            said.append((found[1], found[2]))
    # Rank 0 alone prints rings; its thread is known by them.
    first = next((thread for thread, text in said if _RING.match(text)), "")
    for thread, text in said:
        if thread == first:
            reading.first_rank(text)
        reading.any_rank(text)
    if not reading.ended or not reading.rings:
        raise InternalError(f"{machine}: NCCL's log ends early")
    nvls, p2p, per_peer = reading.counts or (None, None, None)
    return LibraryAnswer(
        machine=machine, version=reading.version, settings=dict(settings), asked=asked,
        widest_gb_per_s=reading.system[0], total_gb_per_s=reading.system[1],
        graphs=tuple(g for g in reading.graphs if g.pattern and g.channels),
        rings=tuple(ring for _, ring in sorted(reading.rings.items())),
        tree_parents=tuple(
            tuple(parent for _, parent in sorted(parents.items()))
            for _, parents in sorted(reading.parents.items())
        ),
        nvls_channels=nvls, p2p_channels=p2p, p2p_channels_per_peer=per_peer,
        table=reading.table(), calls=tuple(reading.calls),
    )  # fmt: skip
