"""The engine of a Dask cluster: one that runs already, or of Slurm or Kubernetes.

Cells travel, and rows come back. A worker that dies is survived: Dask tries its batch on another
one, and a batch that ends too many of them is split, so that one cell takes no others with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from simreduce.errors import InputError
from simreduce.study.sweep.cells import KILLED, Cell, Figures
from simreduce.study.sweep.engines.engine import (
    MOST_DEATHS,
    Batches,
    Engine,
    EngineGone,
    evaluate_timed,
    limit_plans,
)
from simreduce.study.sweep.store import CellAnswer

CLUSTERS: Mapping[str, tuple[str, str, str]] = {
    "slurm": ("dask_jobqueue", "SLURMCluster", "dask-jobqueue"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster", "dask-kubernetes"),
}
"""Where each kind of cluster is made, and the package that does so."""
_AHEAD = 3
"""Batches that each core has or waits for."""
_LOOK = 1.0
"""Seconds after which the scheduler is looked at though nothing was done."""
_PATIENCE = 20.0
"""Seconds for which a scheduler that does not answer is waited for."""

_one_at_a_time = threading.Lock()
"""A worker may have threads; what it keeps of machines is for one of them."""


def work(cells: Sequence[Cell], memory: int) -> list[tuple[Figures, float]]:
    """Rows of a batch, on a worker."""
    with _one_at_a_time:
        limit_plans(memory)
        return [evaluate_timed(cell) for cell in cells]


class DaskCluster(Engine):
    """The Dask cluster at an address, or a new one of Slurm or Kubernetes with so many workers.

    InputError if a package is missing, or nobody answers.
    """

    def __init__(
        self, address: str, workers: int | None, memory: int, say: Callable[[str], None]
    ) -> None:
        self.memory = memory
        # Read when it is imported: a lost connection is said once, by us.
        loggers = "asyncio", "distributed", "distributed.client", "distributed.core", "tornado"
        _import("dask.config", "distributed").set({"logging": dict.fromkeys(loggers, "critical")})
        distributed = _import("distributed", "distributed")
        self._cluster = _new_cluster(address, workers) if address in CLUSTERS else None
        self._distributed = distributed
        try:
            self._client = distributed.Client(
                self._cluster or address, timeout=_PATIENCE, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError) as error:
            self._end_cluster()
            raise InputError(f"--cluster {address}: nobody answers: {error}") from None
        count = len(self._client.ncores())
        say(f"{address}: {count} workers" if count else f"{address}: waiting for workers")

    def run(self, cells: Sequence[Cell]) -> Generator[list[CellAnswer], None, None]:
        """Yield the answers, batch by batch. EngineGone if the scheduler goes away."""
        batches = Batches(cells)  # whose rows come back together
        running: dict[Any, list[Cell]] = {}
        try:
            while True:
                self._submit(batches, running)
                if not running:
                    return
                for future in self._wait(running):
                    if answers := self._take(future, running.pop(future), running):
                        yield answers
        finally:
            with contextlib.suppress(Exception):  # it may be gone
                self._client.cancel(list(running))

    def _submit(self, batches: Batches, running: dict[Any, list[Cell]]) -> None:
        """Keep every core busy for a while."""
        with _lost_connection():
            cores = max(sum(self._client.ncores().values()), 1)
        while len(running) < _AHEAD * cores and (batch := batches.take(len(running), cores)):
            self._send(batch, running)

    def _send(self, batch: list[Cell], running: dict[Any, list[Cell]]) -> None:
        with _lost_connection():
            future = self._client.submit(work, batch, self.memory, pure=False)
        running[future] = batch

    def _wait(self, running: dict[Any, list[Cell]]) -> list[Any]:
        """Futures that are done, whatever their state; none for a while that brings none."""
        done: list[Any] = []
        with _lost_connection(), self._client.as_current(), contextlib.suppress(TimeoutError):
            done = [
                *self._distributed.wait(
                    list(running), timeout=_LOOK, return_when="FIRST_COMPLETED"
                ).done
            ]
        if self._client.status != "running":
            raise EngineGone(_GONE)
        return done

    def _take(
        self, future: Any, batch: list[Cell], running: dict[Any, list[Cell]]
    ) -> list[CellAnswer]:
        """The answers of a future; cells of a batch that failed are sent one by one."""
        if future.status == "finished":
            with _lost_connection():
                pairs = zip(batch, future.result(), strict=True)
            return [CellAnswer(cell, row, taken, self.memory) for cell, (row, taken) in pairs]
        if future.status in ("lost", "pending"):
            # The worker died after its work and before its rows were fetched: it is done again.
            running[future] = batch
            return []
        if future.status != "error":
            raise EngineGone(f"the cluster gave up its work ({future.status})")
        if len(batch) == 1:
            with _lost_connection():
                error = future.exception()
            return [self._failed(batch[0], error)]
        for cell in batch:
            self._send([cell], running)
        return []

    def _failed(self, cell: Cell, error: BaseException) -> CellAnswer:
        """The row of a cell that no worker survives. EngineGone for what is no cell's fault."""
        if isinstance(error, self._distributed.KilledWorker):
            words = f"{MOST_DEATHS} or more workers ended at it"
            return CellAnswer(cell, Figures(state=KILLED, reason=words), 0.0, self.memory)
        words = " ".join(str(error).split())
        raise EngineGone(f"a worker cannot compute: {type(error).__name__}: {words}")

    def close(self) -> None:
        """Leave the cluster, and end it if it was made for this."""
        with contextlib.suppress(Exception):  # it may be gone
            self._client.close(timeout=2)
        self._end_cluster()

    def _end_cluster(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close()


_GONE = "the scheduler went away"


@contextlib.contextmanager
def _lost_connection() -> Iterator[None]:
    """EngineGone for whatever a lost connection raises."""
    try:
        yield
    except Exception as error:
        raise EngineGone(_GONE) from error


def _new_cluster(name: str, workers: int | None) -> Any:
    """A cluster of Slurm or Kubernetes, as the user's Dask configuration says."""
    module, kind, package = CLUSTERS[name]
    try:
        cluster = getattr(_import(module, package), kind)()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a configuration makes it raise
        words = " ".join(str(error).split())
        raise InputError(f"--cluster {name}: {type(error).__name__}: {words}") from None
    cluster.scale(workers or 1)
    return cluster


def _import(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"--cluster needs {package}: pip install 'simreduce[cluster]'") from None
