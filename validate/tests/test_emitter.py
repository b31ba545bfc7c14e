"""Every plan, carried out by TensorFlow on CPU devices of one process: exactly the sum, exactly the
plan's transfers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings as repeat, strategies as st
from simreduce_validate.running.contents import Contents
from simreduce_validate.running.emitter import program
from simreduce_validate.running.execution import find_departures, read_execution
from simreduce_validate.running.placement import logical_cpus
from simreduce_validate.running.program import load
from simreduce_validate.running.session import SessionRunner, session_config

import simreduce as sr
from simreduce import dtypes
from simreduce.errors import InputError, StrategyError
from simreduce.plan import Contract, Executor, Kind, Plan, PlanBuilder, Values, verify
from simreduce.plan.plan import IN_PLACE, NO_STREAM
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, TWO_LEVEL
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.study.tune.prove import machines
from simreduce.study.tune.sizes import ROOTED
from simreduce.testing import strategies
from simreduce.topology import load_topology
from simreduce.training.variable_update import MODES, Flags, variable_update
from validate.tests.emitted import (
    compiled,
    found_wrong,
    pipelined,
    remove,
    served,
    started,
    without,
    workload,
    wrong_after,
)

RANKS = range(2, 9)
SIZES = (1, 37, 7)
MOST_OPS = 1500
"""Of larger plans of several gradients, one gradient is enough where not all of the catalogue is
asked for.
"""
PACKERS = (
    "",
    "+packs=3",
    "+small=64,3",
    "+repack=2,fp16",
    "+bucket=64",
    "+ddp",
    "+fusion",
    "+mean",
)
MERGED = ("+merge=2",)


def options(name):
    """What is put after an algorithm's name: every packer, chunks where it sends any, merging where
    it is possible.
    """
    return (
        *PACKERS,
        *(("+chunk=20",) if pipelined(name) else ()),
        *(MERGED if name == "collective" else ()),
    )


def shapes(name, ranks=RANKS):
    """Machines for an algorithm: those of two tasks too for what tells tasks apart."""
    across = name in TWO_LEVEL or name.startswith(("nccl", "pscpu", "xring", "blueconnect"))
    return [
        machines(n, tasks) for n in ranks for tasks in ((1, 2) if across and n % 2 == 0 else (1,))
    ]


@pytest.mark.parametrize("name", [*ALGORITHMS, *TWO_LEVEL])
def test_every_algorithm_gives_the_sum(name):
    """2, 3, 5 and 8 devices; each time another packer."""
    checked = 0
    for i, layout in enumerate(shapes(name, (2, 3, 5, 8))):
        text = name + options(name)[i % len(options(name))]
        for plan in served(text, [layout], SIZES):
            small = (
                compiled(name, layout.n, [37], len(layout.tasks)) if len(plan) > MOST_OPS else plan
            )
            checked += 1
            assert [] == found_wrong(small), f"{text} on {layout.ranks}"

    assert checked


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ALGORITHMS, *TWO_LEVEL])
def test_every_algorithm_with_every_packer_gives_the_sum(name):
    """All of the catalogue on 2 to 8 devices, with shards where it has any."""
    for layout in shapes(name):
        shards = [f"{name}#2"] if ALGORITHMS[name].shards else []
        for text in (*(name + option for option in options(name)), *shards):
            for plan in served(text, [layout], SIZES):
                assert [] == found_wrong(plan), f"{text} on {layout.ranks}"


@pytest.mark.parametrize("collective", sorted(COLLECTIVES.keys() - {"all_reduce"}))
def test_every_other_collective(collective):
    for name in COLLECTIVES[collective]:
        for ranks, root in ((2, 1), (3, 0), (5, 4)):
            layout = machines(ranks, 1)
            try:
                plan = compile_collective(
                    collective,
                    name,
                    workload([37, 2]),
                    layout,
                    root=root if collective in ROOTED else 0,
                )
            except StrategyError:
                continue
            assert [] == found_wrong(plan), f"{collective} {name} on {ranks}, root {root}"


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_variable_update(mode):
    flags = Flags(all_reduce_spec="xring" if mode == "distributed_all_reduce" else "")

    layout = machines(4, 1 if mode == "replicated" else 2)

    assert [] == found_wrong(variable_update(mode, workload(SIZES), layout, flags))


@pytest.mark.parametrize(
    "text", ["collective#2", "nccl", "hierarchical_copy+packs=8", "multi_ring"]
)
def test_on_the_links_of_a_real_machine(text):
    plan = sr.compile(text, workload([1001]), sr.layout(load_topology("dgx1v")))

    assert [] == found_wrong(plan)


@pytest.mark.parametrize("dtype", dtypes.NAMES)
@pytest.mark.parametrize(
    "text", ["ring", "ring+mean", "pscpu#1+packs=2+mean", "recursive_doubling", "nccl+mean"]
)
@pytest.mark.parametrize("ranks", [3, 8])
def test_every_dtype(dtype, text, ranks):
    assert [] == found_wrong(compiled(text, ranks, [33, 2], dtype=dtypes.code(dtype)))


def test_a_dtype_that_cannot_hold_the_sums_is_refused():
    """Sums of 257 numbers in bfloat16 are not exact, whatever the numbers."""
    b = PlanBuilder([f"gpu{i}" for i in range(257)])
    b.output(b.add([b.copy(b.input(i, 0, 4, 3), 0) for i in range(257)]))

    with pytest.raises(InputError, match="bfloat16: sums of 257 ranks are not exact"):
        Contents.of(b.finish(Contract.reduce(range(257), [(0, 4, 3)], 0)))


@given(data=st.data())
@repeat(max_examples=60)
def test_without_a_copy_or_an_add_the_check_fails(data):
    """Taken out of the graph, not of the plan: just when the proof says that the plan without it
    breaks its promise.
    """
    name = data.draw(st.sampled_from([n for n in ALGORITHMS if n != "hierarchical_copy_gcp_v100"]))
    text = name + data.draw(st.sampled_from(["", "+packs=2", "+mean"]))
    ranks = data.draw(st.sampled_from([2, 3, 4, 6]))
    plans = list(
        served(text, [machines(ranks, 1)], data.draw(st.sampled_from([(5,), (3, 8), (1,)])))
    )
    assume(plans)
    plan = plans[0]
    able = np.flatnonzero(
        (plan.kind == Kind.COPY) | ((plan.kind == Kind.ADD) & (plan.operand_count > 1))
    ).tolist()
    assume(able)
    op = data.draw(st.sampled_from(able))

    broken = bool(verify(without(plan, op)))
    found = wrong_after(plan, remove(op, plan))

    assert broken == bool(found), plan.describe(op)


def test_without_any_one_copy_or_add_of_a_ring_the_check_fails():
    """Where nothing is empty, padded or in vain, every single one matters."""
    plan = compiled("ring", 3, [7])
    ops = np.flatnonzero(np.isin(plan.kind, (Kind.COPY, Kind.ADD))).tolist()

    assert [] == [plan.describe(op) for op in ops if not wrong_after(plan, remove(op, plan))]


def test_a_fault_names_device_interval_and_first_wrong_element():
    b = PlanBuilder(["gpu0", "gpu1"])
    own = [b.input(rank, 0, 8) for rank in range(2)]
    sums = b.concat(
        [b.slice(own[1], 0, 3), b.add([b.copy(own[0], 1, 3, 8), b.slice(own[1], 3, 8)])]
    )
    b.output(sums)
    plan = b.finish(Contract.reduce(range(2), [(0, 8, 0)], 1))
    contents = Contents.of(plan)
    one, both = (
        sum(contents.of_contributor(r, 0, 1)[0] for r in ranks) for ranks in ((1,), (0, 1))
    )

    assert [
        f"gpu1 [0, 8): element 0 is {one:g} instead of {both:g}; 3 of 8 are wrong"
    ] == found_wrong(plan)


def test_a_result_that_is_missing_is_a_fault():
    b = PlanBuilder(["gpu0", "gpu1"])
    own = [b.input(rank, 0, 8) for rank in range(2)]
    b.output(b.add([own[0], b.copy(own[1], 0)]))

    assert ["gpu1 [0, 8): not all of it is an output"] == found_wrong(
        b.finish(Contract.all_reduce(range(2), [(0, 8, 0)]))
    )


def test_what_was_executed_is_held_against_the_plan():
    """The transfers and sums of another plan are told."""
    plan, other = compiled("ring", 3, [6]), compiled("direct", 3, [6])
    with started(other) as (prog, step, _):
        found = find_departures(plan, prog.place, read_execution(step.partitions(), step.graph))

    assert any("transfer only in the plan" in text for text in found)
    assert any("transfer not in the plan" in text for text in found)


@pytest.mark.parametrize(
    "text",
    ["ring", "xring#2+packs=2", "pscpu", "chain+chunk=64", "hierarchical_copy+repack=2,fp16"],
)
def test_every_op_is_there_once_on_its_device(text):
    """Counted in the graphs that the devices got, after any rewriting by TensorFlow."""
    plan = compiled(text, 4, [37, 100])
    kinds = {
        Kind.COPY: {"DeepCopy"}, Kind.ADD: {"AddV2", "AddN"}, Kind.CAST: {"Cast"},
        Kind.SLICE: {"Slice"},
        Kind.CONCAT: {"ConcatV2"}, Kind.INPUT: {"ReadVariableOp", "Const"},
    }  # fmt: skip
    with started(plan) as (prog, step, _):
        nodes = {node.name: node for part in step.partitions() for node in part.node}

    for op in range(len(plan)):
        kind = Kind(int(plan.kind[op]))
        if kind == Kind.OUTPUT or (kind == Kind.CONCAT and plan.arg[op] == IN_PLACE):
            assert f"op{op}" not in nodes
        else:
            assert nodes[f"op{op}"].op in kinds[kind] | (
                {"Identity"} if plan.operand_count[op] == 1 else set()
            )
            assert nodes[f"op{op}"].device == prog.place[plan.device[op]]


def test_equal_ops_stay_two():
    """TensorFlow would join the two sums, and send the value once."""
    b = PlanBuilder(["gpu0", "gpu1"])
    x, y = b.input(0, 0, 4), b.input(1, 0, 4)
    first, second = b.add([y, b.copy(x, 1)]), b.add([y, b.copy(x, 1)])
    moved = b.copies(Values.of([x, x]), np.array([1, 1]))
    for value in (first, second, *moved):
        b.output(value)
    plan = b.finish(Contract.of("none", []))
    with started(plan) as (_, step, _):
        ran = read_execution(step.partitions(), step.graph)

    assert 3 == sum(ran.transfers.values()) == ran.copied
    assert 2 == sum(ran.sums.values())


@given(
    plan=strategies.plans(
        ["gpu0", "gpu1", "gpu2"],
        strategies.FigureRanges(st.none(), st.none(), st.sampled_from([1, 3, 16])),
        25,
    )
)
@repeat(max_examples=60)
def test_any_plan_is_executed_as_it_stands(plan):
    """Views, joins, streams, control edges, values that nobody reads: values as numpy finds them,
    transfers as planned.
    """
    prog, contents = program(plan, logical_cpus(3)), Contents.of(plan)
    step = SessionRunner(prog, session_config(3))
    try:
        load(prog, step, contents)
        step.run()
        found = {
            op: np.concatenate(step.read([v.name for v in variables]))
            for op, variables in prog.results.items()
        }
        ran = read_execution(step.partitions(), step.graph)
    finally:
        step.close()

    assert [] == find_departures(plan, prog.place, ran)
    values = evaluated(plan, contents)
    for op, value in found.items():
        np.testing.assert_allclose(value.astype(float), values[op].astype(float), rtol=0.01)


def evaluated(plan: Plan, contents: Contents):
    """The plan's arithmetic in numpy, by op."""
    held = []
    for op in range(len(plan)):
        kind, lo, hi = Kind(int(plan.kind[op])), int(plan.lo[op]), int(plan.hi[op])
        dtype = {"bfloat16": "float32"}.get(name := dtypes.NAMES[plan.dtype[op]], name)
        read = [
            held[v][max(lo - plan.lo[v], 0) : max(hi - plan.lo[v], 0)] for v in plan.operands_of(op)
        ]
        with np.errstate(over="ignore"):
            if kind == Kind.INPUT:
                value = contents.given(op)
            elif kind == Kind.ADD:
                value = np.sum(read, axis=0)
            elif kind == Kind.SCALE:
                value = read[0] / plan.arg[op]
            else:
                value = np.concatenate(read) if kind == Kind.CONCAT else read[0]
            held.append(value.astype(dtype))
    return held


@pytest.mark.parametrize("text", ["ring", "chain+chunk=64", "nccl", "binary_tree+chunk=40"])
def test_ops_wait_for_control_edges_and_streams(text):
    """By the clock of the executor: what is waited for has ended when the op, or the Identity
    beside its source, begins.
    """
    plan = compiled(text, 4, [100])
    with started(plan) as (_, step, _):
        events = {event.name: event for event in step.trace()}
    waited, last = Counter(), {}
    for op in range(len(plan)):
        before = plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist()
        # NCCL's streams only name a channel.
        if plan.stream[op] != NO_STREAM and Executor(plan.executor[op]) == Executor.TF:
            before += [last[stream]] if (stream := int(plan.stream[op])) in last else []
            last[stream] = op
        begin = events.get(f"op{op}/source", events.get(f"op{op}"))
        for earlier in before:
            if earlier in plan.operands_of(op) or f"op{earlier}" not in events or begin is None:
                continue
            waited[Kind(int(plan.kind[op]))] += 1
            assert events[f"op{earlier}"].finish <= begin.start + 1e-9, plan.describe(op)

    assert waited[Kind.COPY]


@pytest.mark.parametrize("text", ["ring", "pscpu+packs=2", "chain+chunk=64"])
def test_chained_repetitions_start_when_the_results_before_are_there(text):
    plan = compiled(text, 3, [50, 9])
    assert [] == found_wrong(plan, chained=3)
    with started(plan, chained=2) as (_, step, _):
        events = {event.name: event for event in step.trace()}
    outputs = np.flatnonzero(plan.kind == Kind.OUTPUT)
    inputs = np.flatnonzero((plan.kind == Kind.INPUT) & (plan.hi > plan.lo))
    made = plan.operands[plan.operand_start[outputs]]
    for device in range(3):
        ends = [
            events[f"op{op}"].finish
            for op in made[plan.device[made] == device]
            if f"op{op}" in events
        ]
        starts = [events[f"again1/op{op}"].start for op in inputs[plan.device[inputs] == device]]
        assert max(ends, default=0.0) <= min(starts) + 1e-9


def test_copies_within_a_process_are_real():
    """What arrives lies in a buffer of its own: as many as the plan has COPYs."""
    plan = compiled("direct", 4, [64])
    with started(plan) as (_, step, _):
        assert plan.transfers == read_execution(step.partitions(), step.graph).copied
