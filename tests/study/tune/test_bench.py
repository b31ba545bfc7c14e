"""The sweep over sizes of `bench`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from simreduce import dtypes
from simreduce.engine import IDEAL, NCCL, TENSORFLOW, AtLeast
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError
from simreduce.files.published import published_tables
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.accuracy import calls_of, predict, setup_for, strategy_for
from simreduce.study.ranking import Refused
from simreduce.study.tune.sizes import BY_DEFAULT, MOST_SIZES, BenchCalls, bench, bench_all, sizes
from simreduce.topology import load_machine, load_topology
from simreduce.workload import MOST_BYTES, Gradient, Workload
from tests.simulating import simulate


@pytest.mark.parametrize(
    ("minimum", "maximum", "step", "factor", "expected"),
    [
        (8, 64, 1, 2, [8, 16, 32, 64]),
        (8, 65, 1, 2, [8, 16, 32, 64]),
        (8, 63, 1, 2, [8, 16, 32]),
        (10, 40, 10, 0, [10, 20, 30, 40]),
        (10, 45, 10, 0, [10, 20, 30, 40]),
        (10, 45, 10, 1, [10, 20, 30, 40]),
        (7, 7, 1, 0, [7]),
        (7, 7, 1, 2, [7]),
        (1, 5, 0, 1.1, [1, 2, 3, 4, 5]),
        (4, 14, 0, 1.5, [4, 6, 9, 13]),
    ],
)
def test_sizes_grow_by_a_factor_or_by_a_step(minimum, maximum, step, factor, expected):
    """As nccl-tests' do: a factor above 1 wins over the step; both ends count."""
    assert expected == sizes(minimum, maximum, step, factor)


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(1000, 10**6),
    st.one_of(st.just(0.0), st.floats(1.1, 16)),
)
def test_sizes_rise_within_their_ends(minimum, more, step, factor):
    """Strictly, from the first to at most the last."""
    found = sizes(minimum, minimum + more, step, factor)

    assert minimum == found[0]
    assert found[-1] <= minimum + more
    assert sorted(set(found)) == found


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ((2, 1, 1, 0), ["the sizes go from -b 2 to -e 1: needs 1 <= minbytes <= maxbytes"]),
        ((0, 1, 1, 0), ["the sizes go from -b 0 to -e 1: needs 1 <= minbytes <= maxbytes"]),
        ((1, 2, 0, 0), ["-i 0: the step must be at least 1 byte (or give -f, a factor above 1)"]),
        ((1, 2, 1, math.nan), ["-f nan: the factor must be above 1 (or give -i, a step)"]),
        ((1, 2, 1, math.inf), ["-f inf: the factor must be above 1 (or give -i, a step)"]),
        ((1, 2, 1, -2), ["-f -2: the factor must be above 1 (or give -i, a step)"]),
        ((1, 2, 1, 0.5), ["-f 0.5: the factor must be above 1 (or give -i, a step)"]),
        ((1, MOST_BYTES + 1, 1, 2), [f"-e {MOST_BYTES + 1}: more than 1 PiB"]),
        (
            (1, MOST_SIZES + 1, 1, 0),
            [f"more than {MOST_SIZES} sizes; raise the step (-i) or the factor (-f)"],
        ),
        (
            (1, 2**50, 1, 1.0000001),
            [f"more than {MOST_SIZES} sizes; raise the step (-i) or the factor (-f)"],
        ),
        (
            (3, 2, 0, 0),
            [
                "the sizes go from -b 3 to -e 2: needs 1 <= minbytes <= maxbytes",
                "-i 0: the step must be at least 1 byte (or give -f, a factor above 1)",
            ],
        ),
    ],
)
def test_sizes_that_cannot_be(arguments, problems):
    """Every fault at once, and none of them hangs."""
    with pytest.raises(InputError) as caught:
        sizes(*arguments)

    assert tuple(problems) == caught.value.problems


def test_the_longest_table_is_still_made():
    """The limit itself is allowed."""
    assert MOST_SIZES == len(sizes(1, MOST_SIZES, 1, 0))


def test_rows_go_size_by_size_and_within_a_size_in_the_order_asked_for():
    """Each row is one simulation of one tensor, rounded down to whole elements."""
    machine = load_topology("switch:3,bandwidth=10GB/s,latency=2us")
    shape, strategies = layout(machine), [parse_strategy(text) for text in ("ring+mean", "psgpu")]
    dtype = dtypes.code("float64")
    rows = list(bench(Setup(machine, IDEAL, part=shape), strategies, [100, 4100], dtype))

    assert [("ring+mean", 12, 96, "avg"), ("psgpu", 12, 96, "sum"),
            ("ring+mean", 512, 4096, "avg"), ("psgpu", 512, 4096, "sum")] == [
        (r.algorithm, r.count, r.nbytes, r.redop) for r in rows
    ]  # fmt: skip
    for row in rows:
        workload = Workload("one", (Gradient("tensor", row.count, dtype),))
        result = simulate(compile_plan(row.algorithm, workload, shape), machine, "ideal")
        assert (result.seconds, result.floors.hardware, result.transfers, result.bottleneck, 0) == (
            row.seconds,
            row.floor_seconds,
            row.transfers,
            row.link,
            row.wrong,
        )


@pytest.mark.parametrize("fold", [False, True])
def test_the_machine_refuses_some_of_a_list_and_answers_the_others(fold):
    """At every size, with the reason in the place of a time; all refused are an error."""
    machine = load_machine("dgx1vx3" if fold else "full:4", folded=fold)
    setup = Setup(machine, IDEAL, part=layout(machine))
    texts = ("ring", "xring#99", "direct", "copy_to_gpus", "xring#98")
    strategies = [parse_strategy(text) for text in texts]
    rows = list(bench(setup, strategies, [1 << 12, 1 << 13]))
    alone = list(bench(setup, [strategies[0]], [1 << 12, 1 << 13]))

    assert [*texts, *texts] == [row.strategy for row in rows]
    assert alone == [rows[0], rows[5]]
    refused = [row for row in rows if isinstance(row.unfinished, Refused)]
    assert ["xring#99", "xring#98"] * 2 == [row.strategy for row in refused]
    assert all("number of sub-chunks" in row.unfinished.reason("") for row in refused)

    with pytest.raises(InputError) as caught:
        list(bench(setup, [strategies[1], strategies[4]], [1 << 12]))
    assert ["xring#99, xring#98"] == [problem.split(":")[0] for problem in caught.value.problems]


def test_what_has_no_way_is_refused():
    machine = load_topology("ring:4")
    ring, copies = [parse_strategy(text) for text in ("ring", "copy_to_gpus")]
    found = list(bench(Setup(machine, IDEAL), [ring, copies], [1 << 12]))

    assert found[0].unfinished is None
    assert "no route from" in found[1].unfinished.reason("")
    with pytest.raises(InputError, match="no route from"):
        list(bench(Setup(machine, IDEAL), [copies], [1 << 12]))


def test_a_single_rank_takes_no_time_and_no_link():
    """It has its sum already."""
    machine = load_topology("switch:1")
    (row,) = bench(Setup(machine, IDEAL), [parse_strategy("ring")], [64])

    assert (0.0, 0, "", 0.0) == (row.seconds, row.transfers, row.link, row.link_share)


@pytest.mark.parametrize("runtime", [IDEAL, TENSORFLOW, NCCL], ids=lambda r: r.name)
def test_a_runtime_that_is_given_is_that_of_every_row(runtime):
    """Each row is what its plan takes on it; by strategy, each is on its own."""
    texts = ["ring", "ring+ddp", "nccl", "nccl+fusion", "nccl+packs=1"]
    strategies, setup = [parse_strategy(text) for text in texts], Setup("dgx1vx2", runtime)
    rows = list(bench(setup, strategies, [1 << 20]))
    own = list(bench(setup.but(runtime=BY_STRATEGY), strategies, [1 << 20]))
    workload = Workload("1 MiB", (Gradient("tensor", 1 << 18),))

    plans = [setup.compile(strategy, workload) for strategy in strategies]
    assert [setup.simulate(plan).seconds for plan in plans] == [row.seconds for row in rows]
    assert {runtime.name} == {row.runtime for row in rows}
    assert ["tensorflow", *["nccl"] * 3, "tensorflow"] == [row.runtime for row in own]
    for row, expected in zip(own, rows, strict=True):
        assert row.runtime != runtime.name or row.seconds == expected.seconds


def test_of_all_strategies_each_plan_is_compiled_once_and_the_refused_are_named(monkeypatch):
    """Lines come size by size, with the reason in a row that is refused."""
    compiled = []
    real = Setup.compile

    def compile_and_count(setup, strategy, workload, *args, **kwargs):
        compiled.append((str(strategy), workload.elements))
        return real(setup, strategy, workload, *args, **kwargs)

    monkeypatch.setattr(Setup, "compile", compile_and_count)
    setup = Setup("full:4")
    named = [parse_strategy(text) for text in ("direct", "ring")]
    wanted = list(bench(setup, named, [4096, 8192]))
    compiled.clear()
    every = [named[0], parse_strategy("hierarchical_copy_gcp_v100"), named[1]]
    lines = list(bench_all(setup, every, [4096, 8192]))

    assert [*range(6)] == [place for place, _ in lines]
    refused = [row for place, row in lines if place % 3 == 1]
    assert wanted == [row for _, row in lines if row not in refused]
    assert all("needs exactly 8 devices" in row.unfinished.reason("") for row in refused)
    assert len(set(compiled)) == len(compiled) == 6


def _bounded_and_whole(monkeypatch, machine, size):
    """Rows by strategy: cut where they cannot win, on two processes too, and all simulated."""
    monkeypatch.setattr("simreduce.study.tune.simulate.LONG", 60)
    monkeypatch.setattr("simreduce.study.tune.simulate._QUICK", 1)
    monkeypatch.setattr("simreduce.study.ranking.BATCH", 2)
    setup = Setup(machine, BY_STRATEGY)
    texts = ("nccl", "ring", "chain", "double_tree", "direct", "psgpu", "halving_doubling")
    strategies = [parse_strategy(text) for text in texts]
    cut, twice, whole = (
        {row.strategy: row for _, row in bench_all(setup, strategies, [size], **options)}
        for options in ({}, {"workers": 2}, {"simulate_all": True})
    )
    assert cut == twice
    return cut, whole


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("machine", "size"), [("dgx1vx2", 1 << 22), ("switch:16", 1 << 12)])
def test_a_row_is_the_same_or_a_bound_above_the_fastest(monkeypatch, machine, size):
    cut, whole = _bounded_and_whole(monkeypatch, machine, size)
    fastest = min(row.seconds for row in whole.values())
    bounded = [name for name, row in cut.items() if isinstance(row.unfinished, AtLeast)]

    assert bounded
    assert len(bounded) < len(whole)
    for name, row in whole.items():
        if name in bounded:
            assert fastest < cut[name].unfinished.seconds <= row.seconds
        else:
            assert cut[name] == row


def test_a_lower_bound_leaves_no_strategy_out_that_has_a_time(monkeypatch):
    """However long that takes."""
    monkeypatch.setattr("simreduce.study.tune.simulate.LONG", 1)
    monkeypatch.setattr("simreduce.study.ranking.BATCH", 1)
    setup = Setup("dgx-h100", BY_STRATEGY)
    strategies = [parse_strategy(name) for name in ("copy_to_cpu", "nccl")]
    rows = [row for _, row in bench_all(setup, strategies, [1024])]
    seconds = {row.strategy: row.seconds for row in rows if row.unfinished is None}

    assert {"copy_to_cpu": True, "nccl": False} == {row.strategy: row.undispatched for row in rows}
    assert seconds["copy_to_cpu"] < seconds["nccl"] < math.inf


@pytest.mark.parametrize(
    "name", ["bessemer_v100pcie_2", "abci_a_broadcast_n1_g4", "dgx2_12gpu_all_reduce"]
)
def test_a_bench_as_a_published_table_was_measured_is_what_accuracy_predicts(name):
    (table,) = (table for table in published_tables() if table.name == name)
    setup = setup_for(table).but(runtime=BY_STRATEGY)
    calls = calls_of(table, setup)
    (points,) = predict([table])
    chosen = [strategy_for(table.collective)]
    rows = list(bench(setup, chosen, [nbytes for nbytes, _ in table.times[:6]], calls=calls))

    assert [row.seconds for row in rows] == pytest.approx([p.predicted for p in points[:6]])
    others = bench(setup, chosen, [table.times[0][0]])
    assert (next(others).seconds == rows[0].seconds) == (calls == BY_DEFAULT)


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 1000))
def test_threads_share_the_gpus_of_each_machine(nthreads, each, iterations):
    shape = layout(load_machine("dgx-h100x2"))
    shape = shape.only([rank for task in shape.tasks for rank in task[:each]])
    if each % nthreads:
        with pytest.raises(InputError, match=f"share the {each} GPUs"):
            BenchCalls.by_threads(nthreads, shape, iterations)
        return
    alone = nthreads == each
    assert BenchCalls.by_threads(nthreads, shape, iterations) == BenchCalls(
        0 if alone else each // nthreads, iterations
    )


@pytest.mark.parametrize(("version", "together"), [((2, 4), True), ((2, 8), False)])
def test_old_versions_launch_the_kernels_of_a_process_together(version, together):
    shape = layout(load_machine("dgx1v"))
    assert BenchCalls.by_threads(1, shape, version=version) == BenchCalls(8, together=together)
    assert BenchCalls.by_threads(8, shape, version=version) == BenchCalls(0)


def test_a_thread_issues_calls_one_after_another_however_small():
    """Small calls wait for it, large ones hide it, and a plan of TensorFlow's has no such call."""
    sizes_, one = [64, 1 << 28], BenchCalls(8)
    strategies = [parse_strategy("nccl"), parse_strategy("ring")]
    alone = list(bench(Setup("dgx-h100", BY_STRATEGY), strategies, sizes_))
    driven = list(bench(Setup("dgx-h100", BY_STRATEGY), strategies, sizes_, calls=one))
    nccl = Setup("dgx-h100").constants.nccl

    assert driven[0].seconds == pytest.approx(nccl.launch + 8 * nccl.launch_each)
    assert driven[0].seconds > alone[0].seconds
    assert [row.seconds for row in driven[1:]] == [row.seconds for row in alone[1:]]
    low, high = driven[0].interval
    assert low < driven[0].seconds < high
