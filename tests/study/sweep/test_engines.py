"""Engines: the same rows anywhere, and cells that end their workers."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from simreduce.errors import DeviceError
from simreduce.study.sweep import Figures, engine as engines
from simreduce.study.sweep.engine import MOST_DEATHS, Batches, Here, Processes
from simreduce.study.sweep.question import read_question
from simreduce.study.sweep.running import CellRunner
from simreduce.study.sweep.store import Store
from tests.study.sweep.sweeping import answer, cells_of, expected, plan, rows
from tests.thorough import THOROUGH

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SMALL = plan({"nodes": "2..4", "strategy": "ring,direct,nccl", "size": "1K..1M*32"})


def run(engine, cells):
    try:
        return {a.cell.digest: a.row for answers in engine.run(cells) for a in answers}
    finally:
        engine.close()


@pytest.mark.parametrize("engine", [partial(Here, 4 << 30), partial(Processes, 1, 4 << 30),
                                    partial(Processes, 2, 4 << 30)])  # fmt: skip
def test_every_engine_gives_the_same_rows_to_the_bit(tmp_path, engine):
    path = str(tmp_path / "rows.db")
    answer(path, SMALL, engine)

    assert rows(path) == expected(SMALL)


def test_a_cell_that_ends_its_workers_is_listed_and_costs_no_other(monkeypatch):
    cells = cells_of(SMALL)
    deadly, evaluate = cells[4].digest, engines.evaluate

    def die_at_one(cell):
        if cell.digest == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate(cell)

    monkeypatch.setattr(engines, "evaluate", die_at_one)
    found = run(Processes(2, 4 << 30), cells)

    assert found[deadly] == Figures(
        state="killed", reason=f"{MOST_DEATHS} workers ended at it: killed by SIGKILL"
    )
    assert {digest: row for digest, row in found.items() if digest != deadly} == {
        cell.digest: evaluate(cell) for cell in cells if cell.digest != deadly
    }


def test_workers_that_end_at_once_are_not_started_for_ever(monkeypatch):
    monkeypatch.setattr(engines, "evaluate", lambda _: os._exit(3))
    with pytest.raises(DeviceError, match="ended one after another: exit status 3"):
        run(Processes(2, 4 << 30), cells_of(SMALL))


def test_a_fault_of_simreduce_is_a_row_and_no_end(monkeypatch):
    def fail(cell):
        raise RuntimeError(f"of {cell.kind}")

    monkeypatch.setattr(engines, "evaluate", fail)
    found = run(Here(4 << 30), cells_of(SMALL)[:2])

    assert {row.reason for row in found.values()} == {
        "a fault of simreduce: RuntimeError: of bench"
    }


@pytest.mark.slow
def test_what_takes_more_memory_than_a_worker_has_is_refused(monkeypatch):
    cell = read_question("switch:4").cell({})
    monkeypatch.setattr(
        engines, "evaluate", lambda _: Figures(state="done", nbytes=len(bytearray(600 << 20)))
    )
    [roomy] = run(Processes(1, 1 << 30), [cell]).values()
    [tight] = run(Processes(1, 200 << 20), [cell]).values()

    assert roomy.state == "done"
    assert tight == Figures(state="too_large", reason="it took more memory than a worker has")


def test_a_batch_is_of_one_machine_and_every_cell_is_handed_out_once():
    cells = cells_of(SMALL)
    batches, seen = Batches(cells), []
    while batch := batches.take(len(seen) % 3, 3):
        assert len({cell.machine for cell in batch}) == 1
        assert len(batch) <= 8
        seen += batch
    assert sorted(c.digest for c in seen) == sorted(c.digest for c in cells)


def test_workers_start_with_cells_of_different_machines():
    batches = Batches(cells_of(SMALL))

    assert len({batches.take(worker, 3)[0].machine for worker in "abc"}) == 3


def test_a_runner_computes_equal_cells_once_and_only_what_is_missing(tmp_path):
    cells = cells_of(SMALL)[:3]
    with Store(str(tmp_path / "rows.db"), write=True) as store:
        with CellRunner(store, workers=0) as runner:
            first = runner.rows([*cells, *cells])
        with CellRunner(store, workers=0) as runner:
            assert runner.missing(cells) == []
            assert runner.rows(cells) == first[:3] == first[3:]
    with CellRunner(workers=0) as runner:
        assert runner.rows(cells) == first[:3]


def large_cells() -> tuple[list, int]:
    """Ranks of cells from 8 to 131,072 ranks, and the KiB of the largest of their workers."""
    both, size = "halving_doubling,double_tree", "64M"
    cells = cells_of(plan({"nodes": "1..256*4", "strategy": both, "size": size}, "dgx-a100"))
    more = both if THOROUGH else "halving_doubling"  # trees are not folded: each takes minutes
    over = {"nodes": "1024..16384*4", "strategy": more, "size": size}
    cells += cells_of(plan(over, "dgx-a100"))
    found = run(Processes(2, 1 << 30), cells)
    for row in found.values():
        assert row.state == "done" or (row.state in ("too_large", "refused") and row.reason)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    ranks = {row.ranks for cell in cells if (row := found[cell.digest]).state == "done"}
    return sorted(ranks), peak


@pytest.mark.thorough
def test_cells_of_8_to_131072_ranks_stay_within_a_workers_memory():
    """Equal machines are folded; what is not foldable at that size is refused with the reason.

    In a process of its own: a forked worker begins with all that other tests left behind here.
    """
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as alone:
        ranks, peak = alone.submit(large_cells).result()

    assert ranks == [8 << power for power in range(0, 15, 2)]
    assert peak < 2 << 20
