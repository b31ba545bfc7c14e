"""Scenarios with `[replicas]`, for the commands that answer them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simreduce.cli.progress import Progress
from simreduce.cli.setups import read_disturbance
from simreduce.engine import CALM
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.scenario import Replicas, load_replicas
from simreduce.training.stragglers import BackupChoice, Repetitions, compare_backups, repeat

_ONLY_STEP = {
    "algo": "--algo",
    "batch": "--batch",
    "ngpus": "--ngpus",
    "gpus": "--gpus",
    "gpu_indices": "--gpu-indices",
    "nccl": "--nccl",
    "tolerance": "--tolerance",
}


def read_replicas(
    faults: Faults,
    scenario: str,
    *,
    jitter: str | None,
    seed: int | None,
    slow: Iterable[str],
    fault: Iterable[str],
    **given: Any,
) -> Replicas:
    """The question of a scenario with `[replicas]`. InputError with every fault, among them options
    for which it has no use.
    """
    for key, option in _ONLY_STEP.items():
        if given.pop(key, None) not in (None, ()):
            faults.add(option, "a scenario with [replicas] does not use it")
    disturb = (jitter, seed, [*slow], [*fault])
    disturbance = Faults().attempt("", read_disturbance, None, *disturb)
    replicas = faults.attempt("", load_replicas, scenario, disturbance or CALM, **given)
    if disturbance is None:  # its faults, with what the machine lacks
        machine = replicas.setup.topology if replicas and replicas.setup else None
        faults.attempt("", read_disturbance, machine, *disturb)
    if faults.problems or replicas is None:
        raise InputError(faults.problems)
    return replicas


def repeat_replicas(
    replicas: Replicas, processes: int, *, try_backups: bool
) -> tuple[Repetitions, tuple[BackupChoice, ...], bool]:
    """All repetitions, the choices of backups if they are tried, and whether nothing is missing."""
    q = replicas.question
    with Progress("simulated {} of {} repetitions") as progress:
        spread = repeat(q.job, q.updates, q.repetitions, processes, progress)
        if len(spread.updates) < q.repetitions:
            return spread, (), False
        if not try_backups:
            return spread, (), True
        try:
            choices = compare_backups(
                q.job, q.updates, q.repetitions, None, q.skip, processes, progress
            )
        except KeyboardInterrupt:
            return spread, (), False
    return spread, choices, True
