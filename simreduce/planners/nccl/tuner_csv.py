"""The CSV of NCCL's example tuner plugin: rules that choose instead of the model.

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]

The first rule that matches wins; -1 matches everything, or leaves the channels to NCCL. Lines that
begin with # do not count. The plugin's largest size, 4294967295, means any size.

So its README (NVIDIA/nccl, plugins/tuner/example) has it. Its code gives a call one channel if no
rule matches or a rule has -1 channels: whoever writes a file covers every call and says how many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import Faults
from simreduce.files.textfiles import read_text
from simreduce.planners.nccl.tables import COLLECTIVES, PROTOCOLS

_COLLECTIVES = {name.replace("_", ""): name for name in COLLECTIVES}
_ALGORITHMS = {
    "tree": "tree", "ring": "ring", "nvls": "nvls", "nvls_tree": "nvlstree", "pat": "pat",
    "collnet_direct": "collnetdirect", "collnet_chain": "collnetchain",
}  # fmt: skip
_ANY_SIZE = 4294967295
_WIDEST = 200
"""Characters of a comment; the plugin reads 255 of a line, and takes the rest for another."""
_NUMBERS = ("channels", "nNodes", "nRanks", "numPipeOps", "regBuff")


@dataclass(frozen=True, slots=True)
class Rule:
    """A line: for which collective, sizes and communicators it is, and what it chooses."""

    collective: str
    least: int
    most: int | None
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int

    def matches(self, collective: str, nbytes: int, nodes: int, ranks: int) -> bool:
        """Whether the rule is for this call."""
        return (
            self.collective == collective
            and self.least <= nbytes
            and (self.most is None or nbytes <= self.most)
            and self.nodes in (-1, nodes)
            and self.ranks in (-1, ranks)
        )


HEADER = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"


def tuner_text(rules: Iterable[Rule], title: str = "") -> str:
    """The file that has these rules, under a comment; `numPipeOps` and `regBuff` match anything."""
    algorithms = {ours: theirs for theirs, ours in _ALGORITHMS.items()}
    collectives = {ours: theirs for theirs, ours in _COLLECTIVES.items()}
    rows = (
        (
            collectives[rule.collective], rule.least, _ANY_SIZE if rule.most is None else rule.most,
            algorithms[rule.algorithm], rule.protocol, rule.channels, rule.nodes, rule.ranks,
            -1, -1,
        )
        for rule in rules
    )  # fmt: skip
    lines = (",".join(map(str, row)) for row in rows)
    heads = [f"# {line}"[:_WIDEST] for line in (title, f"{HEADER},numPipeOps,regBuff") if line]
    return "\n".join([*heads, *lines, ""])


def load_tuner(path: str) -> tuple[Rule, ...]:
    """The rules of a file; raises `InputError` with every fault."""
    return read_tuner(read_text(Path(path), InputError), path)


def read_tuner(content: str, source: str) -> tuple[Rule, ...]:
    """The rules of a text; raises `InputError` with every fault."""
    faults = Faults(source)
    rules = []
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            cells = [cell.strip() for cell in line.split(",")]
            if cells[0] != "collective_type":
                rules.append(_rule(cells, faults, f"line {number}"))
    faults.raise_any()
    return tuple(rule for rule in rules if rule is not None)


def _rule(cells: list[str], faults: Faults, place: str) -> Rule | None:
    if not 8 <= len(cells) <= 10:
        faults.add(place, f"must have 8, 9 or 10 fields, got {len(cells)}")
        return None
    before = len(faults.problems)
    collective = _word(cells[0], _COLLECTIVES, "collective", faults, place)
    algorithm = _word(cells[3], _ALGORITHMS, "algorithm", faults, place)
    protocol = _word(cells[4], {name: name for name in PROTOCOLS}, "protocol", faults, place)
    sizes = [_number(cells[i], 0, name, faults, place) for i, name in ((1, "min"), (2, "max"))]
    numbers = [
        _number(cell, -1, name, faults, place)
        for cell, name in zip(cells[5:], _NUMBERS, strict=False)
    ]
    if len(faults.problems) > before:
        return None
    most = None if sizes[1] == _ANY_SIZE else sizes[1]
    return Rule(collective, sizes[0], most, algorithm, protocol, *numbers[:3])


def _word(text: str, known: dict[str, str], what: str, faults: Faults, place: str) -> str:
    if text.lower() in known:
        return known[text.lower()]
    near = did_you_mean(text.lower(), known) or f"; known: {', '.join(known)}"
    faults.add(place, f"unknown {what} {quote(text)}{near}")
    return ""


def _number(text: str, least: int, name: str, faults: Faults, place: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,18}", text) and int(text) >= least:
        return int(text)
    faults.add(place, f"{name}: must be a whole number of at least {least}, got {quote(text)}")
    return least
