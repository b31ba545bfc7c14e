"""A cell's row: the one function that workers run, wherever they are.

What is built of a machine (routes, layouts, folded machines) is kept for the cells that follow.
Cells that share a machine should come together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from simreduce import dtypes
from simreduce.engine import CALM, Disturbance
from simreduce.engine.disturbance_text import parse_disturbance
from simreduce.errors import Deadlock, InputError, PlanTooLarge, first_words
from simreduce.formats import Faults
from simreduce.layouts import Layout, layout
from simreduce.nccl.settings import settings_of
from simreduce.scenario import Scenario, beside, build_replicas, build_scenario
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.sweep.cells import BENCH, REPLICAS, RUN, STEP, Cell
from simreduce.sweep.contents import code
from simreduce.sweep.question import BENCH_DOCUMENT, DISTURB
from simreduce.sweep.rows import DONE, FAILED, REFUSED, STUCK, TOO_LARGE, Row
from simreduce.textfiles import flatten
from simreduce.topology import Folded, Topology, load_machine, load_topology
from simreduce.training.stragglers import repeat
from simreduce.tune.bench import DIVIDED, BenchRow, Machines, machines_of, predict_row
from simreduce.tune.busbw import algbw, busbw
from simreduce.tune.rank import rank
from simreduce.tune.steps import rank_steps

_KEPT = 2
"""Machines that a worker keeps: one of 16,384 GPUs takes 1 GB."""


def evaluate(cell: Cell) -> Row:
    """The row of a cell. What the cell's input cannot do is in its `reason`, not raised."""
    if cell.code and cell.code != code():
        return Row(state=FAILED, reason=f"this worker has simreduce {code()}, not {cell.code}")
    try:
        if cell.kind == BENCH:
            return _bench(cell.document, cell.folder)
        answers = {RUN: _run, STEP: _step, REPLICAS: _replicas}
        return answers[cell.kind](cell)
    except PlanTooLarge as error:
        return Row(state=TOO_LARGE, reason="; ".join(error.problems))
    except InputError as error:
        return Row(state=REFUSED, reason="; ".join(error.problems))
    except Deadlock as error:
        return Row(state=STUCK, reason=first_words(error))


def _bench(document: Mapping[str, Any], folder: str) -> Row:
    faults = Faults()
    values = BENCH_DOCUMENT.read(document, faults)
    faults.raise_any()
    strategy = parse_strategy(values["strategy"], values["collective"])
    at = _machines(_Key(document, folder))
    setup = at.setting.setup
    parts = setup.layout.n if values["collective"] in DIVIDED else 1
    least = dtypes.SIZES[dtypes.code(document_dtype(document))] * parts
    if values["size"] < least:
        raise InputError(f"size: must be at least {least} bytes, one element of every part")
    row = at.do(predict_row, strategy, values["size"])
    if not isinstance(row, BenchRow):
        return Row(state=STUCK, reason=row.reason)
    ranks = setup.layout.n
    low, high = row.interval or (None, None)
    return Row(
        state=DONE,
        seconds=row.seconds,
        low=low,
        high=high,
        chosen=row.algorithm,
        runtime=row.runtime,
        ranks=ranks,
        nbytes=row.nbytes,
        algbw=algbw(row.nbytes, row.seconds),
        busbw=busbw(row.nbytes, row.seconds, ranks, row.collective),
        floor=row.floor_seconds,
        bound=row.link or None,
        bound_share=row.link_share,
        transfers=row.transfers,
        wrong=row.wrong,
        machines=row.machines,
        topology=setup.machine.name,
        topology_digest=setup.machine.digest,
    )


class _Key:
    """What the rows of a table have in common, as a key of caches: all but strategy and size."""

    def __init__(self, document: Mapping[str, Any], folder: str) -> None:
        self.document = {k: v for k, v in document.items() if k not in ("strategy", "size")}
        self.folder = folder
        self._text = repr((sorted(self.document.items()), folder))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(_KEPT)
def _machines(key: _Key) -> Machines:
    faults = Faults()
    values = BENCH_DOCUMENT.read(key.document, faults)
    faults.raise_any()
    overrides = flatten(values["topology_overrides"] or {})
    machine = _machine(
        beside(Path(key.folder, "it"), values["topology"]), tuple(sorted(overrides.items()))
    )
    shape = _part(layout(machine), values["gpus"])
    if shape and values["gpu_indices"]:
        shape = shape.with_order(values["gpu_indices"])
    setup = Setup(
        machine,
        values["runtime"],
        beside(Path(key.folder, "it"), values["calibration"]),
        _disturbance(key.document.get("disturb"), machine),
        shape,
        **({"nccl": settings_of(values["nccl"])} if values["nccl"] else {}),
    )
    dtype = dtypes.code(document_dtype(key.document))
    return machines_of(
        setup, dtype, faithful=values["faithful"], root=values["root"], fold=None, eager=True
    )


def document_dtype(document: Mapping[str, Any]) -> str:
    """The type of a bench's elements."""
    return str(document.get("dtype", "float"))


@lru_cache(_KEPT)
def _machine(text: str, overrides: tuple[tuple[str, Any], ...]) -> Topology | Folded:
    return load_machine(text, dict(overrides))


def _load(text: str, overrides: Mapping[str, Any] | None) -> Topology:
    """`load_topology` with the machines of the cells before."""
    return _topology(text, tuple(sorted((overrides or {}).items())))


@lru_cache(_KEPT)
def _topology(text: str, overrides: tuple[tuple[str, Any], ...]) -> Topology:
    return load_topology(text, dict(overrides))


def forget() -> None:
    """Drop what is kept of the cells before."""
    for kept in (_machines, _machine, _topology):
        kept.cache_clear()


def _part(shape: Layout, gpus: Any) -> Layout:
    if gpus is None:
        return shape
    try:
        return shape.only(gpus) if isinstance(gpus, list) else shape.subset(gpus)
    except ValueError as error:
        raise InputError(f"gpus: {error}") from None


def _disturbance(table: Any, machine: Topology | Folded | None) -> Disturbance:
    faults = Faults()
    values = DISTURB.read(table or {}, faults, "disturb")
    jitter = values["jitter"]
    found = parse_disturbance(
        faults, "", jitter, values["seed"] if jitter else None, values["slow"] or (),
        values["fault"] or (), values["tolerance"],
    )  # fmt: skip
    if isinstance(machine, Topology):
        faults.attempt("", found.check, machine)
    faults.raise_any()
    return found


@contextmanager
def _no_file(cell: Cell) -> Iterator[Path]:
    """A path in the folder of a cell, where there is no file: faults are named without it."""
    path = Path(cell.folder, "cell.toml")
    try:
        yield path
    except InputError as error:
        raise type(error)([text.removeprefix(f"{path}: ") for text in error.problems]) from None


def _scenario(cell: Cell) -> Scenario:
    document = cell.document
    with _no_file(cell) as path:
        scenario = build_scenario(path, document["scenario"], document.get("batch"), _load)
    setup = scenario.setup
    changes: dict[str, Any] = {"disturbance": _disturbance(document.get("disturb"), setup.machine)}
    if document.get("gpus") is not None:
        changes["part"] = _part(setup.layout, document["gpus"])
    return scenario.but(**changes) if changes != {"disturbance": CALM} else scenario


def _replicas(cell: Cell) -> Row:
    with _no_file(cell) as path:
        calm = _disturbance(cell.document.get("disturb"), None)
        replicas = build_replicas(path, cell.document["scenario"], calm)
    question, setup, workload = replicas.question, replicas.setup, replicas.workload
    found = repeat(question.job, question.updates, question.repetitions)
    count = len(found.updates)
    if count < question.repetitions:
        raise KeyboardInterrupt
    reason = f"{found.blocked} of {count} repetitions did not make all updates"
    if found.blocked == count:
        return Row(state=STUCK, reason=reason)
    return Row(
        state=DONE,
        reason=reason if found.blocked else "",
        seconds=float(found.steps(question.skip).mean()),
        gradients_per_second=float(found.rates(question.skip).mean()),
        dropped=found.wasted,
        runtime=setup.runtime.name if setup else None,
        ranks=question.job.workers,
        nbytes=workload.nbytes if workload else None,
        topology=setup.machine.name if setup else None,
        topology_digest=setup.machine.digest if setup else None,
    )


def _run(cell: Cell) -> Row:
    scenario = _scenario(cell)
    ranking = rank(scenario)
    if ranking.untried:
        raise KeyboardInterrupt
    best = ranking.recommended
    if best is None:
        reasons = [reason for _, reason in ranking.refused]
        return Row(state=REFUSED, reason="; ".join(reasons) or "no plan is proven right")
    setup, nbytes = scenario.setup, scenario.workload.nbytes
    ranks = setup.layout.n
    largest = max((g.nbytes for g in scenario.workload.gradients), default=0)
    band = None
    if best.strategy.reduced_by_nccl:
        band = setup.running(best.strategy).interval(largest, best.seconds)
    low, high = band or (None, None)
    busiest = max((best.link_share, best.link), (best.lane_share, best.lane))
    return Row(
        state=DONE,
        seconds=best.seconds,
        low=low,
        high=high,
        chosen=best.strategy.text,
        runtime=best.runtime,
        ranks=ranks,
        nbytes=nbytes,
        algbw=algbw(nbytes, best.seconds),
        busbw=busbw(nbytes, best.seconds, ranks),
        floor=best.floor_seconds,
        bound=busiest[1] or None,
        bound_share=busiest[0],
        transfers=best.transfers,
        wrong=best.wrong,
        machines=1,
        topology=setup.machine.name,
        topology_digest=setup.machine.digest,
    )


def _step(cell: Cell) -> Row:
    scenario = _scenario(cell)
    ranking = rank_steps(scenario)
    if ranking.untried:
        raise KeyboardInterrupt
    best = ranking.recommended
    step, setup = best.step, scenario.setup
    method, _, chosen = step.method.rpartition(", ")
    band = None
    if "nccl" in chosen:
        largest = max((g.nbytes for g in scenario.workload.gradients), default=0)
        band = setup.interval(largest, step.exposed)
    low, high = (step.seconds - step.exposed + end for end in band) if band else (None, None)
    parts = {
        "compute": step.compute,
        "exposed communication": step.exposed,
        "update": step.update,
        "launch": step.launch,
    }
    bound = max(parts, key=parts.__getitem__)
    return Row(
        state=DONE,
        seconds=step.seconds,
        low=low,
        high=high,
        chosen=chosen,
        method=method or "ddp",
        runtime=best.runtime,
        ranks=step.devices,
        nbytes=scenario.workload.nbytes,
        bound=bound,
        bound_share=parts[bound] / step.seconds if step.seconds else 0.0,
        link=best.bottleneck or None,
        compute=step.compute,
        exposed=step.exposed,
        communication=step.communication,
        update=step.update,
        launch=step.launch,
        efficiency=best.efficiency,
        samples_per_second=step.images_per_second if step.seconds else None,
        memory=step.memory.peak if step.memory else None,
        wrong=best.wrong,
        machines=1,
        topology=setup.machine.name,
        topology_digest=setup.machine.digest,
    )
