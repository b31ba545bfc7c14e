"""The fast proof finds every damage that the slow one finds, in plans of every algorithm, packer
and collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import simreduce as sr
from simreduce.errors import InputError
from simreduce.plan import Contract, Plan, proof, residues, verify
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES
from simreduce.planners.algorithms.families import FAMILIES
from simreduce.planners.packing import PACKERS
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.workload import Gradient, Workload
from tests.plan import slow_proof

WORKLOAD = Workload("test", tuple(Gradient(f"g{i}", size) for i, size in enumerate((7, 24, 1, 9))))
MACHINES = (
    "full:4",
    "switch:4",
    "switch:4,reduce=yes",
    "dgx1v",
    "mi300x",
    "dgx-a100x2",
    "dgx-h100",
    "dgx-h100x2",
    "dgx-a100x2,fabric=rail_optimised,reduce=yes",
    "gh200x3",
)
PACKED = {"packs": "packs=2", "small": "small=64,3", "repack": "repack=3,fp16",
          "bucket": "bucket=64", "merge": "merge=2", "ddp": "ddp", "fusion": "fusion"}  # fmt: skip
PAIRS = (*(f"{name}/ring" for name in FAMILIES), "ring/double_tree", "direct/halving_doubling")
OF_OPS = ("kind", "device", "lo", "hi", "dtype", "arg", "operands", "controls")
OF_PROMISES = ("device", "lo", "hi", "dtype", "divisor")


def strategies() -> Iterator[tuple[str, str]]:
    """A collective and the text of a strategy: each algorithm, each packer, pairs of families."""
    for collective, algorithms in COLLECTIVES.items():
        yield from ((collective, name) for name in algorithms)
    for packer in PACKERS:
        yield from (
            ("all_reduce", f"{name}+{PACKED[packer]}") for name in ("collective", "psgpu#2")
        )
    yield from (("all_reduce", pair) for pair in PAIRS)
    yield from (("all_reduce", f"{name}+mean") for name in ("ring", "nccl", "trees+packs=2"))


def plans() -> dict[tuple[str, str], Plan]:
    """A plan of each strategy, on the first machine that takes it."""
    layouts = [sr.layout(sr.load_topology(machine)) for machine in MACHINES]
    found = {}
    for collective, text in strategies():
        for shape in layouts:
            try:
                found[collective, text] = compile_collective(collective, text, WORKLOAD, shape)
            except InputError:
                continue
            break
    return found


def damage(plan: Plan, random: np.random.Generator) -> Plan:
    """One to three numbers of the plan or of what it promises are others."""
    for _ in range(random.integers(1, 4)):
        top = int(plan.hi.max()) + 1
        promised = random.random() < 0.15
        name = str(random.choice(OF_PROMISES if promised else OF_OPS))
        low, high = {
            "kind": (0, 8), "device": (0, len(plan.devices)), "dtype": (0, 3), "divisor": (1, 4),
            "arg": (-2, 6), "lo": (0, top), "hi": (0, top), "operands": (-1, len(plan)),
            "controls": (-1, len(plan)),
        }[name]  # fmt: skip
        holder: Plan | Contract = plan.contract if promised else plan
        column = getattr(holder, name).copy()
        if not len(column):
            continue
        place, near = random.integers(len(column)), random.random() < 0.5
        value = column[place] + random.integers(-2, 3) if near else random.integers(low, high)
        column[place] = np.clip(value, low, high - 1)
        if promised and name in {"lo", "hi"}:
            other = plan.contract.hi[place] if name == "lo" else plan.contract.lo[place]
            column[place] = (min if name == "lo" else max)(column[place], other)
        if promised:
            plan = replace(plan, contract=replace(plan.contract, **{name: column}))
        else:
            plan = replace(plan, **{name: column})
    return plan


def test_every_algorithm_and_packer_has_a_plan_to_damage():
    """Or the next test would not be about all of them."""
    found = {text for _, text in plans()}

    assert found >= {name for algorithms in COLLECTIVES.values() for name in algorithms}
    assert found >= set(ALGORITHMS)
    assert {packer for packer in PACKERS if f"psgpu#2+{PACKED[packer]}" in found
            or f"collective+{PACKED[packer]}" in found} == set(PACKERS)  # fmt: skip


@pytest.mark.thorough
def test_ten_thousand_damages(monkeypatch):
    """In turn in each plan; few or many atoms at once, interpreted or compiled."""
    random = np.random.default_rng(20)
    every, broken = list(plans().items()), 0
    for i in range(10_000):
        name, plan = every[i % len(every)]
        damaged = damage(plan, random)
        monkeypatch.setattr(proof, "_CELLS", int(random.integers(1, 2000)))
        compiled = bool(random.integers(2))
        for module in (proof, residues):
            monkeypatch.setattr(module, "worth_compiling", lambda *_, now=compiled: now)
        expected = [(p.rule, p.message, p.elements) for p in slow_proof.verify(damaged)]
        found = [(p.rule, p.message, p.elements) for p in verify(damaged)]
        assert expected == found, name
        broken += bool(expected)

    assert broken > 7_000
