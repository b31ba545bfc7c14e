"""`verify` against plans broken by hand, and against an evaluator that works element by element."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import event, given, settings, strategies as st

import simreduce as sr
from simreduce.plan import (
    ZEROS,
    Contract,
    Homes,
    Kind,
    Plan,
    PlanBuilder,
    Problem,
    Promise,
    Value,
    proof,
    residues,
    verify,
    verify_part,
    wrong_elements,
)
from simreduce.testing.strategies import with_controls
from tests.plan import slow_proof
from tests.thorough import examples

FLOAT16 = 1

Writer = Callable[[PlanBuilder, list[Value]], Sequence[Value]]
"""Makes the values that are declared as results, of elements [0, 8) on each of three GPUs."""

SUM = Contract.all_reduce(range(3), [(0, 8, 0)])
MEAN = Contract.all_reduce(range(3), [(0, 8, 0)], divisor=3)


def plan_of(write: Writer, contract: Contract = SUM) -> Plan:
    b = PlanBuilder(["gpu0", "gpu1", "gpu2"])
    for value in write(b, [b.input(r, 0, 8) for r in range(3)]):
        b.output(value)
    return b.finish(contract)


def total(b: PlanBuilder, values: Sequence[Value]) -> Value:
    """Their sum, on gpu0."""
    return b.add([b.copy(value, 0) for value in values])


def everywhere(b: PlanBuilder, value: Value) -> list[Value]:
    return [b.copy(value, device) for device in range(3)]


def star(of: Writer = lambda b, x: x, divided_by: int | None = None) -> Writer:  # noqa: ARG005
    """Sum `of(b, x)` on gpu0, divide, copy to all."""

    def write(b: PlanBuilder, x: list[Value]) -> list[Value]:
        value = total(b, of(b, x))
        return everywhere(b, b.scale(value, divided_by) if divided_by else value)

    return write


def part(value: Value, lo: int, hi: int) -> Value:
    return value._replace(lo=lo, hi=hi)


def said(plan: Plan) -> list[str]:
    return [str(problem) for problem in verify(plan)]


# Plans that keep their promise.

RIGHT: dict[str, tuple[Writer, Contract]] = {
    "sum": (star(), SUM),
    "mean": (star(divided_by=3), MEAN),
    "mean of parts": (star(lambda b, x: [b.scale(v, 3) for v in x]), MEAN),
    "division in two steps": (star(lambda b, x: [b.scale(v, 6) for v in (*x, *x)]), MEAN),
    "padding": (star(lambda b, x: [*x, b.zeros(0, 0, 8)]), SUM),
    "compressed": (star(lambda b, x: [b.cast(b.cast(v, FLOAT16), 0) for v in x]), SUM),
    "cut and joined": (lambda b, x: [b.concat(b.split(v, [5, 3])) for v in star()(b, x)], SUM),
    "results in pieces": (
        lambda b, x: [part(v, *p) for v in star()(b, x) for p in ((0, 3), (3, 8))],
        SUM,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plan_has_no_problem(name):
    """However it is written."""
    problems = verify(plan_of(*RIGHT[name]))

    assert not problems
    assert wrong_elements(problems) == 0


def promise(intervals: Sequence[tuple[int, int]], members: Sequence[int]) -> Contract:
    """Rank r ends with the sum over `members` of intervals[r]."""
    lo, hi = np.array(intervals).T
    n = len(intervals)
    zeros = np.zeros(n, dtype=np.int64)
    return Contract("by hand", np.arange(n), lo, hi, zeros, zeros, zeros + 1, (frozenset(members),))


def test_reduce_scatter_is_a_contract():
    """Each rank is promised its own part of the sum."""
    cuts = [(0, 3), (3, 6), (6, 8)]

    def scatter(b: PlanBuilder, x: list[Value]) -> list[Value]:
        return [part(b.add([b.copy(part(v, *cuts[r]), r) for v in x]), *cuts[r]) for r in range(3)]

    assert not verify(plan_of(scatter, promise(cuts, [0, 1, 2])))


def test_broadcast_is_a_contract():
    """Everybody is promised what rank 0 has."""
    contract = promise([(0, 8)] * 3, [0])
    forgotten = plan_of(lambda b, x: [x[0], b.copy(x[0], 1), x[2]], contract)

    assert not verify(plan_of(lambda b, x: everywhere(b, x[0]), contract))
    assert ["wrong sum: gpu2 [0, 8): rank 0 is missing, rank 2 does not belong"] == said(forgotten)


# Promises that are broken: the message names the device, the interval, and what is wrong with the
# sum.


def on_all(text: str) -> list[str]:
    return [f"wrong sum: gpu{r} [0, 8): {text}" for r in range(3)]


def _without_rank_1_in_the_second_half(b: PlanBuilder, x: list[Value]) -> list[Value]:
    halves = [total(b, [part(v, 0, 4) for v in x]), total(b, [part(x[0], 4, 8), part(x[2], 4, 8)])]
    return everywhere(b, b.concat([part(half, 4 * i, 4 * i + 4) for i, half in enumerate(halves)]))


def _misplaced(b: PlanBuilder, x: list[Value]) -> list[Value]:
    onto_0, onto_1, _ = star()(b, x)
    return [onto_0, onto_1, onto_1]


BROKEN: dict[str, tuple[Writer, Contract, list[str]]] = {
    "a contribution is lost": (star(lambda _, x: x[:2]), SUM, on_all("rank 2 is missing")),
    "a contribution is doubled": (
        star(lambda _, x: [*x, x[1]]),
        SUM,
        on_all("rank 1 is counted 2 times"),
    ),
    "one is lost and another tripled": (
        star(lambda _, x: [x[1], x[2], x[2], x[2]]),
        SUM,
        on_all("rank 0 is missing, rank 2 is counted 3 times"),
    ),
    "a stranger contributes": (
        star(lambda b, x: [*x, b.input(0, 0, 8, contributor=3)]),
        SUM,
        on_all("rank 3 does not belong"),
    ),
    "a stranger contributes twice": (
        star(lambda b, x: [*x, *[b.input(0, 0, 8, contributor=3)] * 2]),
        SUM,
        on_all("rank 3 does not belong"),
    ),
    "one rank keeps its own": (
        lambda b, x: [v if v.device != 1 else x[1] for v in star()(b, x)],
        SUM,
        ["wrong sum: gpu1 [0, 8): rank 0 is missing, rank 2 is missing"],
    ),
    "half of a contribution is lost": (
        _without_rank_1_in_the_second_half,
        SUM,
        [f"wrong sum: gpu{r} [4, 8): rank 1 is missing" for r in range(3)],
    ),
    "a result is missing": (lambda b, x: star()(b, x)[:2], SUM, ["no result: gpu2 [0, 8)"]),
    "the end of a result is missing": (
        lambda b, x: [part(v, 0, 6) if v.device == 1 else v for v in star()(b, x)],
        SUM,
        ["no result: gpu1 [6, 8)"],
    ),
    "a result is there twice": (
        lambda b, x: [v for v in star()(b, x) for _ in range(2 - min(v.device, 1))],
        SUM,
        ["more than one result: gpu0 [0, 8)"],
    ),
    "results overlap": (
        lambda b, x: [
            p for v in star()(b, x) for p in (part(v, 0, 5), part(v, 3 if v.device == 2 else 5, 8))
        ],
        SUM,
        ["more than one result: gpu2 [3, 5)"],
    ),
    "a result is on the wrong device": (
        _misplaced,
        SUM,
        ["no result: gpu2 [0, 8)", "more than one result: gpu1 [0, 8)"],
    ),
    "the divisor is wrong": (star(divided_by=2), MEAN, on_all("divided by 2 instead of 3")),
    "nobody divides": (star(), MEAN, on_all("divided by 1 instead of 3")),
    "it is divided twice": (
        star(lambda b, x: [b.scale(v, 3) for v in x], divided_by=3),
        MEAN,
        on_all("divided by 9 instead of 3"),
    ),
    "a sum is divided": (star(divided_by=3), SUM, on_all("divided by 3 instead of 1")),
    "one part is divided": (
        star(lambda b, x: [b.scale(x[0], 3), *x[1:]]),
        MEAN,
        on_all("the sum mixes parts that were divided differently"),
    ),
    "the dtype is another": (
        lambda b, x: [b.cast(v, FLOAT16) if v.device == 1 else v for v in star()(b, x)],
        SUM,
        ["wrong dtype: gpu1 [0, 8)"],
    ),
    "a result was not promised": (
        star(),
        promise([(0, 8)] * 2, [0, 1, 2]),
        ["not promised: op 10 OUTPUT gpu2 [0, 8) in float32 is not in the contract"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_told_in_words(name):
    write, contract, expected = BROKEN[name]

    assert expected == said(plan_of(write, contract))


def test_wrong_elements_are_counted_per_device():
    """5 missing elements on gpu0, and 3 of gpu1 that lack a rank."""

    def write(b: PlanBuilder, x: list[Value]) -> list[Value]:
        right = star()(b, x)
        poor = b.add([x[1], b.copy(x[0], 1)])
        return [part(right[0], 0, 3), part(right[1], 0, 5), part(poor, 5, 8), right[2]]

    problems = verify(plan_of(write))

    assert {("no result", 5), ("wrong sum", 3)} == {(p.rule, p.elements) for p in problems}
    assert wrong_elements(problems) == 8


def test_only_the_elements_that_were_not_promised_are_wrong():
    """The first three of eight are promised and right."""
    plan = plan_of(star(), promise([(0, 8), (0, 8), (0, 3)], [0, 1, 2]))

    assert wrong_elements(verify(plan)) == 5


def test_a_malformed_plan_has_one_wrong_element_per_fault_at_least():
    """A fault in an op says nothing of elements, but the count must not be 0."""
    assert wrong_elements([Problem("order", "op 1"), Problem("device", "op 2")]) == 2


def test_a_plan_without_ops_that_promises_something_lacks_it():
    assert ["no result: gpu0 [0, 8)", "no result: gpu1 [0, 8)", "no result: gpu2 [0, 8)"] == said(
        PlanBuilder(["gpu0", "gpu1", "gpu2"]).finish(SUM)
    )


# Malformed ops. `STAR` is: inputs 0-2, copies 3 and 4 to gpu0, the add 5, and per rank its copy and
# OUTPUT.

STAR = plan_of(star())


def poked(plan: Plan, column: str, index: int, value: int) -> Plan:
    """The plan with one number changed."""
    changed = getattr(plan, column).copy()
    changed[index] = value
    return replace(plan, **{column: changed})


def with_operands(plan: Plan, op: int, operands: Sequence[int]) -> Plan:
    """The plan with other operands of one op."""
    rows = [plan.operands_of(i) for i in range(len(plan))]
    rows[op] = list(operands)
    start = np.cumsum([0, *map(len, rows)])
    return replace(
        plan,
        operand_start=start,
        operands=np.array([v for row in rows for v in row], dtype=np.int32),
    )


def with_control(plan: Plan, op: int, earlier: int) -> Plan:
    return with_controls(plan, [[earlier] if i == op else [] for i in range(len(plan))])


def joined(*intervals: tuple[int, int], as_: tuple[int, int]) -> Plan:
    """On one device, a CONCAT of parts with these intervals that says it is `as_`."""
    b = PlanBuilder(["gpu0"])
    whole = b.concat([b.input(0, lo, hi) for lo, hi in intervals])
    b.output(whole)
    plan = b.finish(Contract.all_reduce([0], [(*as_, 0)]))
    return poked(
        poked(plan, "lo", slice(whole.op, None), as_[0]), "hi", slice(whole.op, None), as_[1]
    )


MALFORMED: dict[str, tuple[Plan, list[str]]] = {
    "an operand comes later": (
        with_operands(STAR, 3, [5]),
        ["order: op 3 COPY gpu0 -> gpu0 [0, 8) waits for an op that does not come before it"],
    ),
    "an operand is the op itself": (
        with_operands(STAR, 5, [0, 5]),
        ["order: op 5 ADD gpu0 [0, 8) waits for an op that does not come before it"],
    ),
    "a control predecessor comes later": (
        with_control(STAR, 3, 5),
        ["order: op 3 COPY gpu1 -> gpu0 [0, 8) waits for an op that does not come before it"],
    ),
    "a copy has two operands": (
        with_operands(STAR, 3, [1, 2]),
        ["operands: op 3 COPY gpu1 -> gpu0 [0, 8) has a wrong number of operands"],
    ),
    "an add has none": (
        with_operands(STAR, 5, []),
        ["operands: op 5 ADD gpu0 [0, 8) has a wrong number of operands"],
    ),
    "an input has one": (
        with_operands(STAR, 2, [1]),
        [
            "operands: op 2 INPUT gpu2 [0, 8) has a wrong number of operands",
            "device: op 2 INPUT gpu2 [0, 8) reads a value that is on another device",
        ],
    ),
    "an add reads from afar": (
        with_operands(STAR, 5, [0, 1, 4]),
        ["device: op 5 ADD gpu0 [0, 8) reads a value that is on another device"],
    ),
    "a copy goes nowhere": (
        poked(STAR, "device", 3, 1),
        [
            "device: op 5 ADD gpu0 [0, 8) reads a value that is on another device",
            "device: op 3 COPY gpu1 -> gpu1 [0, 8) copies to the device where the value is",
        ],
    ),
    "dtypes are mixed": (
        poked(STAR, "dtype", 0, FLOAT16),
        ["dtype: op 5 ADD gpu0 [0, 8) reads a value of another dtype"],
    ),
    "something is divided by 0": (
        poked(plan_of(star(divided_by=3), MEAN), "arg", 6, 0),
        ["divisor: op 6 SCALE gpu0 [0, 8) divides by less than 1"],
    ),
    "an interval is reversed": (
        poked(poked(STAR, "lo", 0, 8), "hi", 0, 0),
        [
            "interval: op 0 INPUT gpu0 [8, 0) has a reversed interval",
            "interval: op 5 ADD gpu0 [0, 8) reads outside the value it is given",
        ],
    ),
    "an add reads past the end": (
        poked(STAR, "hi", 1, 7),
        ["interval: op 3 COPY gpu1 -> gpu0 [0, 8) reads outside the value it is given"],
    ),
    "an add reads before the beginning": (
        poked(STAR, "lo", 4, 1),
        ["interval: op 5 ADD gpu0 [0, 8) reads outside the value it is given"],
    ),
    "there is a gap in a join": (
        joined((0, 3), (4, 8), as_=(0, 8)),
        ["interval: op 2 CONCAT gpu0 [0, 8) joins values that are not adjacent"],
    ),
    "the parts of a join overlap": (
        joined((0, 5), (4, 8), as_=(0, 8)),
        ["interval: op 2 CONCAT gpu0 [0, 8) joins values that are not adjacent"],
    ),
    "a join is in the wrong order": (
        joined((4, 8), (0, 4), as_=(0, 8)),
        ["interval: op 2 CONCAT gpu0 [0, 8) joins values that are not adjacent"],
    ),
    "a join begins before its parts": (
        joined((1, 4), (4, 8), as_=(0, 8)),
        ["interval: op 2 CONCAT gpu0 [0, 8) joins values that are not adjacent"],
    ),
    "a join ends after its parts": (
        joined((0, 4), (4, 7), as_=(0, 8)),
        ["interval: op 2 CONCAT gpu0 [0, 8) joins values that are not adjacent"],
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_op_is_named_with_the_rule_it_breaks(name):
    plan, expected = MALFORMED[name]

    assert expected == said(plan)


@pytest.mark.parametrize(
    "plan",
    [
        with_operands(STAR, 3, [99]),
        with_operands(STAR, 3, [-3]),
        with_control(STAR, 3, 99),
        with_control(STAR, 3, -1),
    ],
    ids=[
        "operand after the end",
        "operand before the start",
        "control after the end",
        "control before the start",
    ],
)
def test_an_op_that_waits_for_one_that_does_not_exist_is_out_of_order(plan):
    """Whatever the number is."""
    (problem,) = verify(plan)

    assert problem.rule == "order"
    assert problem.message.startswith("op 3 COPY")


def test_a_contributor_that_is_no_rank_is_found():
    """Below 0 there is only ZEROS."""
    assert ZEROS == -1
    assert verify(poked(STAR, "arg", 2, -2))


# Random changes to right plans: verify finds a problem if, and only if, the evaluator does.

Elements = dict[int, dict[int, Fraction]]
"""What each element of a value holds: the factor of every contributor, by address."""


def is_well_formed(plan: Plan) -> bool:
    """Every op by itself: what the table of kinds in `simreduce.plan.plan` says."""
    for op in range(len(plan)):
        kind, reads = Kind(plan.kind[op]), plan.operands_of(op)
        if any(not 0 <= v < op for v in reads):
            return False
        counts = {Kind.INPUT: (0, 0), Kind.CONCAT: (1, len(plan)), Kind.ADD: (1, len(plan))}
        least, most = counts.get(kind, (1, 1))
        if not least <= len(reads) <= most or plan.lo[op] > plan.hi[op]:
            return False
        if kind == Kind.SCALE and plan.arg[op] < 1:
            return False
        if kind == Kind.INPUT and not is_at_home(plan, op):
            return False
        if any((plan.device[v] == plan.device[op]) == (kind == Kind.COPY) for v in reads):
            return False
        if kind != Kind.CAST and any(plan.dtype[v] != plan.dtype[op] for v in reads):
            return False
        if kind == Kind.CONCAT:
            ends = [plan.lo[op], *(plan.hi[v] for v in reads)]
            if [plan.lo[v] for v in reads] != ends[:-1] or ends[-1] != plan.hi[op]:
                return False
        elif any(plan.lo[v] > plan.lo[op] or plan.hi[v] < plan.hi[op] for v in reads):
            return False
    return True


def is_at_home(plan: Plan, op: int) -> bool:
    """A contributor is a rank or padding, and has each of its elements on one device: its own,
    where that is said.
    """
    who, where = int(plan.arg[op]), int(plan.device[op])
    if who < 0 or plan.lo[op] == plan.hi[op]:
        return who >= ZEROS
    others = [
        v
        for v in range(len(plan))
        if plan.kind[v] == Kind.INPUT and plan.arg[v] == who and plan.device[v] != where
        and max(plan.lo[v], plan.lo[op]) < min(plan.hi[v], plan.hi[op])
    ]  # fmt: skip
    homes = {
        [Homes(0, {}), *(h for h in plan.contract.homes if h.lo <= address)][-1].device.get(
            who, where
        )
        for address in range(int(plan.lo[op]), int(plan.hi[op]))
    }
    return homes == {where} and not others


def evaluated(plan: Plan) -> list[Elements]:
    """Every op's value, element by element."""
    values: list[Elements] = []
    for op in range(len(plan)):
        kind, arg, value = Kind(plan.kind[op]), int(plan.arg[op]), {}
        for address in range(plan.lo[op], plan.hi[op]):
            held: Counter[int] = Counter()
            if kind == Kind.INPUT and arg != ZEROS:
                held[arg] = Fraction(1)
            for read in plan.operands_of(op):
                for rank, factor in values[read].get(address, {}).items():
                    held[rank] += factor / arg if kind == Kind.SCALE else factor
            value[address] = dict(held)
        values.append(value)
    return values


def brute_force(plan: Plan) -> int:
    """Result elements that are not as promised: lacking, wrong, several, or not promised at all."""
    values, contract = evaluated(plan), plan.contract
    results: dict[tuple[int, int], list[int]] = {}
    for op in np.flatnonzero(plan.kind == Kind.OUTPUT).tolist():
        for address in range(plan.lo[op], plan.hi[op]):
            results.setdefault((int(plan.device[op]), address), []).append(op)
    wrong = 0
    promised = set()
    for row in range(len(contract)):
        goal = {
            r: Fraction(1, int(contract.divisor[row])) for r in contract.sets[contract.members[row]]
        }
        for address in range(contract.lo[row], contract.hi[row]):
            place = (int(contract.device[row]), address)
            promised.add(place)
            ops = results.get(place, [])
            right = (
                len(ops) == 1
                and values[ops[0]][address] == goal
                and plan.dtype[ops[0]] == contract.dtype[row]
            )
            wrong += not right
    return wrong + sum(len(ops) for place, ops in results.items() if place not in promised)


SPECS = (
    "ring",
    "xring",
    "xring#2",
    "pscpu",
    "psgpu#2",
    "copy_to_gpus",
    "reduce_to_one",
    "ring+packs=2+mean",
    "psgpu#2+mean",
)


@st.composite
def right_plans(draw: st.DrawFn) -> Plan:
    """Planners' own plans for a few small gradients."""
    ranks = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    workload = sr.load_workload("bytes:4")
    gradients = tuple(replace(workload.gradients[0], elements=size) for size in sizes)
    layout = sr.layout(sr.load_topology(f"full:{ranks}"))
    return sr.compile(draw(st.sampled_from(SPECS)), replace(workload, gradients=gradients), layout)


@st.composite
def changed_plans(draw: st.DrawFn) -> Plan:
    """A right plan in which one thing, or two, is another; sometimes that makes no difference."""
    plan = draw(right_plans())
    for _ in range(draw(st.integers(1, 2))):
        plan = draw(
            st.sampled_from([_other_number, _other_operands, _other_result, _other_promise])
        )(draw, plan)
    return plan


def _other_number(draw: st.DrawFn, plan: Plan) -> Plan:
    op = draw(st.integers(0, len(plan) - 1))
    top = int(plan.hi.max())
    column, values = draw(
        st.sampled_from(
            [
                ("arg", st.integers(-1, 4)),
                ("lo", st.integers(0, top)),
                ("hi", st.integers(0, top)),
                ("device", st.integers(0, len(plan.devices) - 1)),
                ("dtype", st.integers(0, 2)),
                ("kind", st.integers(0, 7)),
            ]
        )
    )
    return poked(plan, column, op, draw(values))


def _other_operands(draw: st.DrawFn, plan: Plan) -> Plan:
    """One is left out, doubled, or replaced by another value of the same device and interval if
    there is one.
    """
    op = draw(st.sampled_from(np.flatnonzero(plan.operand_count > 0).tolist()))
    reads = plan.operands_of(op)
    place = draw(st.integers(0, len(reads) - 1))
    old = reads[place]
    alike = [
        v
        for v in range(op)
        if (plan.device[v], plan.dtype[v]) == (plan.device[old], plan.dtype[old])
        and plan.lo[v] <= plan.lo[op]
        and plan.hi[op] <= plan.hi[v]
    ]
    choices = [[], [old, old], *([v] for v in alike)]
    return with_operands(
        plan, op, reads[:place] + draw(st.sampled_from(choices)) + reads[place + 1 :]
    )


def _other_result(draw: st.DrawFn, plan: Plan) -> Plan:
    """An OUTPUT becomes a plain SLICE, or a SLICE an OUTPUT: results vanish and appear."""
    ops = np.flatnonzero((plan.kind == Kind.OUTPUT) | (plan.kind == Kind.SLICE)).tolist()
    op = draw(st.sampled_from(ops))
    return poked(plan, "kind", op, Kind.OUTPUT if plan.kind[op] == Kind.SLICE else Kind.SLICE)


def _other_promise(draw: st.DrawFn, plan: Plan) -> Plan:
    contract = plan.contract
    row = draw(st.integers(0, len(contract) - 1))
    change = draw(st.sampled_from(["divisor", "dtype", "members", "hi"]))
    if change == "members":
        fewer = replace(contract, sets=(*contract.sets, frozenset(range(1, 4))))
        members = fewer.members.copy()
        members[row] = 1
        return replace(plan, contract=replace(fewer, members=members))
    column = getattr(contract, change).copy()
    column[row] = (
        draw(st.integers(int(contract.lo[row]), int(column[row])))
        if change == "hi"
        else draw(st.integers(1, 3))
    )
    return replace(plan, contract=replace(contract, **{change: column}))


@given(right_plans())
@settings(max_examples=examples(60))
def test_the_evaluator_finds_planners_right(plan):
    """Or it would be no judge."""
    assert is_well_formed(plan)
    assert brute_force(plan) == 0
    assert not verify(plan)


@given(changed_plans())
@settings(max_examples=examples(250))
def test_a_change_that_matters_is_found_and_no_other(plan):
    """And the elements that are wrong are counted right."""
    problems = verify(plan)
    if not is_well_formed(plan):
        event("malformed")

        assert problems
        assert {p.elements for p in problems} == {0}
        return
    wrong = brute_force(plan)
    event("wrong" if wrong else "still right")

    assert wrong == sum(p.elements for p in problems)
    assert bool(wrong) == bool(problems)


def test_a_contribution_that_was_never_moved_is_found():
    """Both GPUs pretend to have both gradients: every sum is right, and nothing was sent."""
    b = PlanBuilder(("gpu0", "gpu1"))
    for device in (0, 1):
        b.output(b.add([b.input(device, 0, 4, contributor=rank) for rank in (0, 1)]))
    problems = verify(b.finish(Contract.all_reduce([0, 1], [(0, 4, 0)])))

    assert {"contributor"} == {p.rule for p in problems}
    assert {"op 1 INPUT gpu0", "op 4 INPUT gpu1"} <= {
        p.message.partition(" [")[0] for p in problems
    }


# Large plans.


@cache
def ring_of(n: int) -> Plan:
    return sr.compile(
        "ring", sr.load_workload(f"bytes:{4 * n}"), sr.layout(sr.load_topology(f"switch:{n}"))
    )


def test_a_large_plan_is_right():
    assert not verify(ring_of(300))


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_fault_anywhere_in_a_large_plan_is_found(where):
    """Large plans are run stretch by stretch: 300 ranks have 90,000 elements each way and 270,000
    ops.
    """
    plan = ring_of(300)
    adds = np.flatnonzero(plan.kind == Kind.ADD)
    op = int(adds[int(where * len(adds))])
    changed = with_operand(plan, op, plan.operands_of(op)[0])
    problems = verify(changed)

    assert {"wrong sum"} == {p.rule for p in problems}
    assert 300 == sum(p.elements for p in problems)


def with_operand(plan: Plan, op: int, operand: int) -> Plan:
    """The plan with `operand` as the second of `op`."""
    return poked(plan, "operands", int(plan.operand_start[op]) + 1, operand)


def test_residues_are_as_good_as_random():
    """A million ranks: within the field, none of them 0, as many equal ones as chance gives."""
    found = proof._residues_of(np.arange(1_000_000))
    bits = (found[:, None] >> np.arange(31)) & 1

    assert 0 < found.min() <= found.max() < proof.PRIME
    assert 1e6 - len(np.unique(found)) == pytest.approx(1e6**2 / 2 / proof.PRIME, rel=0.3)
    assert [0.5] * 31 == pytest.approx(bits.mean(axis=0).tolist(), abs=0.003)
    assert proof._residues_of(np.array([ZEROS, ZEROS])).tolist() == [0, 0]


# The slow proof, which keeps every value and works level by level, is the oracle of the fast one.

COLUMNS = ("kind", "device", "lo", "hi", "dtype", "arg", "operands", "controls")


@st.composite
def damaged_plans(draw: st.DrawFn) -> Plan:
    """A plan of any algorithm, with up to three numbers changed."""
    plan = draw(right_plans())
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(COLUMNS))
        column = getattr(plan, name)
        if len(column):
            place = draw(st.integers(0, len(column) - 1))
            low = 0 if name == "kind" else -2
            most = 7 if name == "kind" else len(plan.devices) if name == "device" else 40
            most = 2 if name == "dtype" else most
            low = 0 if name in {"device", "dtype"} else low
            most = most - 1 if name == "device" else most
            plan = poked(plan, name, place, draw(st.integers(low, most)))
    return plan


DAMAGED = int(os.environ.get("SIMREDUCE_FUZZ", examples(300, usual=100)))


@given(damaged_plans(), st.integers(1, 50), st.booleans())
@settings(max_examples=DAMAGED, deadline=None)
def test_the_fast_proof_says_what_the_slow_one_says(plan, cells, compiled):
    """Interpreted and compiled, however few atoms are run at once."""
    expected = [(p.rule, p.message, p.elements) for p in slow_proof.verify(plan)]
    event(expected[0][0] if expected else "right")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_CELLS", cells)
        patch.setattr(proof, "worth_compiling", lambda *_: compiled)
        patch.setattr(residues, "worth_compiling", lambda *_: compiled)
        found = [(p.rule, p.message, p.elements) for p in verify(plan)]

    assert expected == found


def test_a_broadcast_must_start_where_its_source_is():
    """Data that is on another device to begin with is no broadcast from the source."""
    b = PlanBuilder(("a", "b"))
    there = b.input(1, 0, 8, contributor=0)
    b.output(there)
    b.output(b.copy(there, 0))
    plan = b.finish(Contract.broadcast([0, 1], [(0, 8, 0)], 0))

    assert ["contributor"] == [problem.rule for problem in verify(plan)]


def test_a_short_part_hides_no_contribution_that_is_elsewhere():
    """[3, 4) on another device is within [0, 10), although [1, 2) comes between the two."""
    b = PlanBuilder(("a", "b"))
    whole, part, stray = b.input(0, 0, 10), b.input(0, 1, 2), b.input(1, 3, 4, contributor=0)
    for value in (whole, part, stray):
        b.output(value)
    members = frozenset([0])
    promises = [Promise(0, 0, 10, 0, members), Promise(1, 3, 4, 0, members)]
    problems = verify(b.finish(Contract.of("none", promises)))

    assert ["contributor: op 2 INPUT b [3, 4) has a contribution that is not there"] == [
        str(problem) for problem in problems
    ]


@given(damaged_plans(), st.integers(1, 50))
@settings(max_examples=examples(100), deadline=None)
def test_the_proof_of_a_part_is_that_of_the_whole_in_these_stretches(plan, cells):
    """It finds nothing that `verify` does not, and all of it where it looks everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_CELLS", cells)
        assert verify_part(plan) == (verify(plan), 1.0)
        patch.setattr(proof, "_MOST", 1)
        patch.setattr(proof, "_PART", 2 * cells)
        found, share = verify_part(plan)

    assert 0.0 <= share <= 1.0
    assert sum(p.elements for p in found) <= sum(p.elements for p in verify(plan))


def test_a_part_of_a_plan_is_proved_evenly(monkeypatch):
    """Every k-th of equal stretches; damage there is found."""
    plan = sr.compile("ring", "bytes:4K", "switch:16")
    monkeypatch.setattr(proof, "_CELLS", 1)
    monkeypatch.setattr(proof, "_MOST", 1)
    monkeypatch.setattr(proof, "_PART", len(plan) // 2)
    problems, share = verify_part(plan)

    assert problems == []
    assert 0.0 < share < 0.6
    inputs = np.flatnonzero(plan.kind == Kind.INPUT)
    wrong = poked(plan, "arg", int(inputs[0]), 3)
    assert wrong_elements(verify_part(wrong)[0]) > 0
