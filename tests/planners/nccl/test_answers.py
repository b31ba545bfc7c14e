"""What `simreduce nccl` says, beside what NCCL's own library said of the same machines.

`make ask-nccl` asks the library and writes the answers beside this file; here none is needed. All
figures are the same to the printed digit but for those in `KNOWN`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from simreduce_validate.nccl_library.answers import read_answers
from simreduce_validate.nccl_library.comparing import KINDS, compare

from simreduce.topology import load_topology
from simreduce.topology.importers import to_nccl_xml
from simreduce.topology.importers.nccl_xml import read_nccl_topology
from simreduce.topology.loader import copies_of, machine_of
from simreduce.topology.machine_files import to_toml
from tests.thorough import slow

ANSWERS = Path(__file__).parent / "answers"
QUICK = (
    ("dgx-h100", "2.30.7"), ("v100-mesh-4", "2.18.3"), ("dgx1v", "2.27.7"), ("gh200x4", "2.28.9"),
    ("a100-pcie-8", "2.23.4"), ("dgx-h100x2", "2.32.3"), ("dgx-a100x2", "2.21.5"),
    ("hgx-b200", "2.31.2"), ("hgx-b200", "2.32.3"), ("ndv4", "2.32.3"), ("alpsx2", "2.27.7"),
    ("dgx1v", "2.22.3"),
)  # fmt: skip


@cache
def _answers():
    """All answers, by what they answer."""
    return {
        " ".join((answer.machine, answer.version, *map("=".join, answer.settings.items()))): answer
        for path in sorted(ANSWERS.glob("*.jsonl"))
        for answer in read_answers(path)
    }


KNOWN = {"dgx1v NCCL_P2P_DISABLE=1": ("speeds of paths", "orders", "rings")}
"""Kinds that differ of a machine with settings. Where GPUs may not copy to each other, the library
keeps the links that lead out of a node of four in its sums, and goes through its second ring in
another order.
"""
_NAMES = [" ".join(each) for each in QUICK]


def _differing(answer, machine=None):
    """The figures that differ and are not known to."""
    asked = " ".join((answer.machine, *map("=".join, answer.settings.items())))
    found = (each for each in compare(answer, machine).figures if not each.equal)
    return [each for each in found if each.kind not in KNOWN.get(asked, ())]


@pytest.mark.parametrize("name", [*_NAMES, *slow(n for n in _answers() if n not in _NAMES)])
def test_we_say_what_the_library_says(name):
    """Graphs, orders, channels, rings, trees, table, costs, estimates, choices, blocks, threads."""
    assert [] == _differing(_answers()[name])


_BACK = ("dgx-a100 2.30.7", "dgx-h100x2 2.30.7", "p4dx2 2.30.7", "rtx4090-2 2.30.7")
_NEWEST = [name for name, each in _answers().items() if "2.30.7" in name and not each.settings]


@pytest.mark.parametrize("name", [*_BACK, *slow(n for n in _NEWEST if n not in _BACK)])
def test_we_say_it_of_the_machine_that_its_export_is_read_as(name, tmp_path):
    """The library read the export, and so do we."""
    answer, path = _answers()[name], tmp_path / "again.toml"
    again, _ = read_nccl_topology(to_nccl_xml(load_topology(machine_of(answer.machine))), "again")
    path.write_text(to_toml(again), "utf-8")
    nodes = copies_of(answer.machine)
    machine = load_topology(f"{path}x{nodes}" if nodes > 1 else str(path))

    assert [] == _differing(answer, machine)


@pytest.mark.slow
@pytest.mark.parametrize("asked", KNOWN)
def test_what_is_known_to_differ_does(asked):
    """A difference that is gone leaves the list."""
    machine, *settings = asked.split()
    answers = [_answers()[" ".join((machine, v, *settings))] for v in ("2.27.7", "2.32.3")]
    differing = {each.kind for a in answers for each in compare(a).figures if not each.equal}

    assert {*KNOWN[asked]} == differing


def test_every_kind_is_compared():
    """In the newest version; what others do not say is left out."""
    found = compare(_answers()["dgx-h100x2 2.30.7"]).figures

    assert list(KINDS) == list(dict.fromkeys(each.kind for each in found))
    assert len(found) > 300
