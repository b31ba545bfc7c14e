"""What a library's limit of rings costs: the same call on each number of GPUs, and without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm

from simreduce import units
from simreduce.engine import NCCL
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.layouts import layout
from simreduce.planners.nccl.time_model import RingLimit
from simreduce.planners.strategy import parse_strategy
from simreduce.study.question import Question
from simreduce.study.tune.bench import DIVIDED, busbw_factor, tensor
from simreduce.topology import Folded

_SAMPLE = 64_000_000
"""Bytes of the all-reduce with which a warning says what the limit costs."""
_WORTH = 0.95
_PART = 16
"""Bytes by which parts of ranks are aligned."""


@dataclass(frozen=True, slots=True)
class OnGpus:
    """The call on some of the GPUs of a node: its seconds, and bus bandwidth in bytes/s."""

    gpus: int
    seconds: float
    busbw: float


@dataclass(frozen=True, slots=True)
class FewRings:
    """A call whose library takes only `rings` rings on so many GPUs of a node.

    `counts` has the same call, of `nbytes`, on 2 GPUs and more, and `lifted` it with
    NCCL_MIN_NCHANNELS, so many `channels`.
    """

    gpus: int
    rings: int
    channels: int
    nbytes: int
    counts: Sequence[OnGpus]
    lifted: OnGpus


def few_rings(question: Question) -> FewRings | None:
    """What the limit costs; None where there is none, or more channels make the call no faster."""
    setup, shape = question.setup, question.setup.layout
    limit = ring_limit(setup) if question.strategy.by_nccl else None
    if limit is None:
        return None
    whole = layout(setup.machine)
    question = _divisible(question, len(whole.tasks[0]))
    own, lifted = _ask(question, shape.n), _ask(_lifted(question, limit), shape.n)
    if not _gains(own, lifted):
        return None
    counts = [
        _ask(replace(question, setup=setup.but(part=whole.only(range(n)))), n)
        for n in range(2, len(whole.tasks[0]) + 1)
    ]
    found = [each for each in counts if each]
    nbytes = question.workload.nbytes
    return FewRings(shape.n, *limit, nbytes, found, lifted) if lifted else None


def _divisible(question: Question, most: int) -> Question:
    """The question of a size that 2 to `most` GPUs cut into equal parts, if the collective cuts."""
    workload, whole = question.workload, lcm(*range(2, most + 1)) * _PART
    cut = question.strategy.collective in DIVIDED and workload.nbytes >= whole
    if not cut or len(workload.gradients) > 1:
        return question
    size = tensor(workload.nbytes // whole * whole, workload.gradients[0].dtype)
    return replace(question, workload=size)


def library_warning(setup: Setup, runtimes: Iterable[str]) -> str:
    """What the limit costs an all-reduce by one of these runtimes, and what to set; and whose
    constants the times have. "" where there is no limit, or more channels are not faster, and the
    constants are the generation's own.
    """
    if NCCL.name not in set(runtimes):
        return ""
    limit = ring_limit(setup)
    return "; ".join(filter(None, [_warning(setup, limit) if limit else "", setup.borrowed]))


@lru_cache(maxsize=64)
def _warning(setup: Setup, limit: RingLimit) -> str:
    strategy, n = parse_strategy("nccl"), setup.layout.n
    question = Question(strategy, tensor(_SAMPLE, 0), setup.running(strategy))
    own, lifted = _ask(question, n), _ask(_lifted(question, limit), n)
    if not own or not lifted or not _gains(own, lifted):
        return ""
    size, times = units.format_size(_SAMPLE), [own.seconds, lifted.seconds]
    now, then = map(units.format_duration, times)
    return (
        f"RCCL takes {limit.rings} rings on {n} GPUs of a node: an all-reduce of {size} takes"
        f" {now}, {then} with NCCL_MIN_NCHANNELS={limit.channels}"
    )


def _gains(own: OnGpus | None, lifted: OnGpus | None) -> bool:
    return own is not None and lifted is not None and lifted.seconds <= _WORTH * own.seconds


def ring_limit(setup: Setup) -> RingLimit | None:
    """The rings that the library allows on the GPUs; None where it allows as many as elsewhere."""
    if isinstance(setup.machine, Folded):
        return None
    return setup.communicator.tuner.ring_limit


def _lifted(question: Question, limit: RingLimit) -> Question:
    """The question with more channels."""
    settings = replace(question.setup.nccl, min_channels=limit.channels)
    return replace(question, setup=question.setup.but(nccl=settings))


def _ask(question: Question, n: int) -> OnGpus | None:
    strategy, setup = question.strategy, question.setup
    try:
        seconds = setup.simulate(question.compile()).seconds
    except InputError:
        return None
    rate = question.workload.nbytes / seconds * busbw_factor(strategy.collective, n)
    return OnGpus(n, seconds, rate)
