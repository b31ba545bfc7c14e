"""The kernel's source, unchanged, under numba: it compiles, and every bit is that of the
interpreted run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import simpy
from hypothesis import HealthCheck, given, settings

import simreduce as sr
from simreduce.computing import workers
from simreduce.computing.loops import Native
from simreduce.engine import NOMINAL, TENSORFLOW, Calibration, Fabric, kernel
from simreduce.engine.kernel import flows, store
from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.kernel.tables import SCALARS, Flows, Heap, Queues, as_arrays
from simreduce.errors import InternalError
from simreduce.plan import Kind
from simreduce.testing.strategies import ANY, ROUND, TWO_ENDED, SimulationInput, scenes
from tests.simulating import simulate
from tests.thorough import examples

Advance = Callable[..., tuple[bool, float]]


def advance_compiled(ops: NamedTuple, state: NamedTuple, now: float, horizon: float):
    """`advance`, as machine code."""
    time = np.zeros(1)
    completed = store.kernel()(ops, state, now, horizon, time)
    return bool(completed), float(time[0])


def columns(table: NamedTuple) -> dict[str, bytes]:
    """Every column, as the compiled kernel sees it."""
    flat = {}
    for name, column in as_arrays(table)._asdict().items():
        if isinstance(column, (Heap, Queues, Flows)):
            flat |= {f"{name}.{each}": value for each, value in columns(column).items()}
        else:
            flat[name] = column.tobytes()
    return flat


def arrays(table: NamedTuple) -> list[np.ndarray]:
    """Every column of a table and of those in it."""
    return [
        each
        for column in table
        for each in (arrays(column) if isinstance(column, tuple) else [column])
    ]


def loaded(
    scene: SimulationInput, times: int, *, compile_first: bool = False
) -> tuple[NamedTuple, NamedTuple]:
    """The kernel's tables with `times` submissions of the scene's plan, before anything has
    happened: lists, whatever ran in this process before, or else arrays from the first one on.
    """
    fabric = Fabric(simpy.Environment(), scene.topology, scene.calibration, scene.runtime)
    with mock.patch.object(store, "compiling_pays", return_value=compile_first):
        for _ in range(times):
            fabric.submit(scene.plan, scene.ready)
    return fabric._store.ops, fabric._store.state


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenes(ANY))
def test_tables_that_are_made_at_once_are_those_made_column_by_column(scene):
    """Whether one plan is submitted or several, one after another."""
    for times in (1, 2):
        by_column = loaded(scene, times)
        at_once = loaded(scene, times, compile_first=True)
        for ours, theirs in zip(at_once, by_column, strict=True):
            assert columns(ours) == columns(theirs)
            for column, other in zip(arrays(ours), arrays(as_arrays(theirs)), strict=True):
                assert column.dtype == other.dtype
                assert column.flags.c_contiguous


def drive(
    advance: Advance, ops: NamedTuple, state: NamedTuple, cut: float
) -> list[tuple[bool, float]]:
    """Run to `cut` in steps, make link 0 half as wide, run to the end. Returns what every call
    returned.
    """
    answers = []
    for begin, horizon in ((0.0, cut / 3), (cut / 3, cut), (cut, inf)):
        now = begin
        if now == cut:
            state.flows.capacity[0] /= 2
            flows.mark_dirty(0, state.flows)
        completed = True
        while completed:
            completed, time = advance(ops, state, now, horizon)
            now = max(now, time) if completed else now
            answers.append((completed, time))
    return answers


def check(scene: SimulationInput, times: int = 2) -> None:
    """Both runs answer the same and leave the same in every column."""
    ops, state = loaded(scene, times)
    other_ops, other_state = as_arrays(ops), as_arrays(state)
    cut = 1e-5
    answers = drive(kernel.advance, ops, state, cut)

    assert answers == drive(advance_compiled, other_ops, other_state, cut)
    assert answers[-1] == (False, inf)
    assert columns(state) == columns(other_state)
    assert np.isfinite(other_state.finish).all()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["xring#2", "hierarchical_copy+packs=4", "pscpu"])
def test_reductions_give_the_same_bits(spec):
    """Two at once on a DGX-1, with dispatch costs."""
    topology = sr.load_topology("dgx1v")
    plan = sr.compile(spec, sr.load_workload("bytes:3M"), sr.layout(topology))
    costs = Calibration("costs", dispatch={"copy": 5e-6, "add": 3e-6})
    ready = np.zeros(np.count_nonzero(plan.kind == Kind.INPUT))

    check(SimulationInput(plan, topology, TENSORFLOW, costs, ready))


@pytest.mark.slow
def test_several_lanes_an_op_give_the_same_bits():
    """The queues with more than one lane per op."""
    topology = sr.load_topology("switch:5")
    plan = sr.compile("psgpu#2+packs=3", sr.load_workload("bytes:1M"), sr.layout(topology))
    ready = np.zeros(np.count_nonzero(plan.kind == Kind.INPUT))

    check(SimulationInput(plan, topology, TWO_ENDED, NOMINAL, ready))


@pytest.mark.slow
@given(scene=scenes(ROUND))
@settings(max_examples=examples(50))
def test_random_plans_give_the_same_bits(scene):
    """With ties, caps of memory, streams and times of readiness."""
    check(scene)


class Checked(list[float]):
    """A column that has no place before its first."""

    def __getitem__(self, index):
        assert index >= 0
        return super().__getitem__(index)

    def __setitem__(self, index, value):
        assert index >= 0
        super().__setitem__(index, value)


def checked(table: NamedTuple) -> NamedTuple:
    """The table with columns that accept no index outside."""
    return type(table)(*(Checked(c) if isinstance(c, list) else checked(c) for c in table))


@given(scene=scenes(ROUND))
@settings(max_examples=examples(250))
def test_every_index_is_in_its_column(scene):
    """The compiled kernel has only the addresses of columns: a negative index would not count from
    the end, as in a list, and one beyond the end would not be noticed.
    """
    ops, state = loaded(scene, 2)

    assert drive(kernel.advance, checked(ops), checked(state), 1e-5)[-1] == (False, inf)


def test_columns_with_gaps_are_refused():
    """An address says nothing of gaps."""
    scalar = np.zeros(2 * SCALARS, dtype=np.int64)[::2]
    state = as_arrays(KernelStore([1e9]).state)
    state = state._replace(flows=state.flows._replace(scalar=scalar))

    with pytest.raises(InternalError, match="gaps"):
        advance_compiled(as_arrays(KernelStore([1e9]).ops), state, 0.0, inf)


# As users get it.


@pytest.fixture
def always_compiled():
    """Whatever the size of the plan."""
    with mock.patch.object(store, "compiling_pays", return_value=True):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("always_compiled")
@given(scene=scenes(ANY))
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_simulate_gives_the_same_bits_when_it_compiles(scene):
    """From the plan to the result."""
    arguments = scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready
    with mock.patch.object(store, "compiling_pays", return_value=False):
        interpreted = simulate(*arguments)

    assert interpreted.to_json() == simulate(*arguments).to_json()


@pytest.mark.slow
@pytest.mark.usefixtures("always_compiled")
def test_a_fabric_goes_on_compiled_in_the_middle_of_a_plan():
    """The first plan is under way, interpreted, when the second is submitted; a link changes
    meanwhile.
    """
    topology = sr.load_topology("dgx1v")
    plan = sr.compile("xring#2", sr.load_workload("bytes:1M"), sr.layout(topology))
    wider = sr.compile("hierarchical_copy", sr.load_workload("bytes:2M"), sr.layout(topology))

    def day(*, pays: bool) -> list[bytes]:
        env = simpy.Environment()
        fabric = Fabric(env, topology)
        done = []

        def submit(each, at: float):
            yield env.timeout(at)
            with mock.patch.object(store, "compiling_pays", return_value=pays and at > 0.0):
                timeline = yield fabric.submit(each)
            done.append(timeline)

        def narrow():
            yield env.timeout(4e-5)
            fabric.set_bandwidth("gpu0>gpu1", 1e9)

        env.process(submit(plan, 0.0))
        env.process(submit(wider, 3e-5))
        env.process(narrow())
        env.run()
        return [c.tobytes() for t in done for c in (t.ready, t.start, t.finish, t.blame)]

    assert day(pays=False) == day(pays=True)


def test_few_flows_that_share_much_are_interpreted_until_that_took_too_long():
    """Patience ends in the middle of a run, which goes on compiled; no bit differs."""
    topology = sr.load_topology("fat_tree:16,oversubscription=2")
    plan = sr.compile("direct", sr.load_workload("bytes:1M"), sr.layout(topology))
    stores: list[KernelStore] = []

    def finishes(patience: float) -> bytes:
        init = KernelStore.__init__

        def keep(store, *arguments):
            init(store, *arguments)
            stores.append(store)

        with (
            mock.patch.object(store, "MOST_INTERPRETED", patience),
            mock.patch.object(store, "compiling_pays", return_value=False),
            mock.patch.object(KernelStore, "__init__", keep),
        ):
            return simulate(plan, topology, "ideal").finish.tobytes()

    assert finishes(inf) == finishes(1000)
    assert [store.compiled for store in stores].count(True) == 1


@pytest.mark.usefixtures("always_compiled")
def test_a_long_run_goes_slice_by_slice_and_says_how_far_it_is():
    """No bit tells how long a slice is, and in between an interrupt ends the run."""
    topology = sr.load_topology("fat_tree:16,oversubscription=2")
    plan = sr.compile("ring", sr.load_workload("bytes:1M"), sr.layout(topology))
    whole, shares = simulate(plan, topology), list[float]()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with mock.patch.object(store, "SLICE", 50):
        with mock.patch.object(workers, "simulating", [shares.append]):
            assert whole.to_json() == simulate(plan, topology).to_json()
        with (
            mock.patch.object(workers, "simulating", [interrupt]),
            pytest.raises(KeyboardInterrupt),
        ):
            simulate(plan, topology)

    assert len(shares) > 10
    assert sorted(shares) == shares
    assert 0.0 < shares[0] < shares[-1] < 1.0


@pytest.mark.parametrize("kept", [True, False])
def test_few_ops_are_interpreted_and_many_are_not(kept):
    """Where there is no machine code yet, once a process has had many ops in all."""
    with (
        mock.patch.object(store, "_seen", [0]),
        mock.patch.object(Native, "is_kept", kept),
    ):
        assert store.compiling_pays(store.WORTH - store.SMALL) == kept
        assert store.compiling_pays(store.SMALL)
        assert not store.compiling_pays(store.SMALL - 1)


_SCRIPT = """
import sys, simreduce as sr
from simreduce.engine.kernel import store
store.WORTH = store.SMALL = 0
topology = sr.load_topology("dgx1v")
plan = sr.compile("xring#2", sr.load_workload("bytes:1M"), sr.layout(topology))
finish = sr.simulate(plan, topology).finish
print(sr.__file__)
print(finish.tobytes().hex())
print("numba" in sys.modules)
"""


@pytest.mark.thorough
def test_a_read_only_install_compiles_once_for_all_processes(tmp_path):
    """Beside a source that cannot be written to, the cache is in the user's folder. Two processes
    start at the same time do not disturb each other; a third loads what they have left, without
    numba. Hash seeds change no bit.
    """
    root = Path(__file__).parents[2]
    install, home = tmp_path / "install", tmp_path / "home"
    home.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("simreduce", "topologies"):
        shutil.copytree(root / folder, install / folder, ignore=ignore)
    for folder in [p for p in (install / "simreduce").rglob("*") if p.is_dir()] + [
        install / "simreduce"
    ]:
        (folder / "__pycache__").write_text(
            "no folder: nothing can be cached here, not even by root"
        )
        folder.chmod(0o555)

    def start(seed: str) -> subprocess.Popen:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SIMREDUCE", "XDG"))}
        environment = keep | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(install), "HOME": str(home)}
        return subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )

    answers = [p.communicate()[0].splitlines() for p in [start("1"), start("2")]]
    answers.append(start("3").communicate()[0].splitlines())

    assert {str(install / "simreduce" / "__init__.py")} == {where for where, _, _ in answers}
    assert 1 == len({bits for _, bits, _ in answers})
    assert "False" == answers[-1][2]
    assert 1 == len(list((home / ".cache" / "simreduce" / "code").glob("run-*")))
