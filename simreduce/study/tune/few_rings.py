"""What a library's limit of rings costs: the same call on each number of GPUs, and without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simreduce import units
from simreduce.engine import NCCL
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.study.question import Question
from simreduce.study.tune.bench import busbw_factor, tensor
from simreduce.topology import Folded

MIN_CHANNELS = 32
"""What AMD advises for NCCL_MIN_NCHANNELS on fewer than eight GPUs (ROCm/rccl pull 1270)."""
_SAMPLE = 64_000_000
"""Bytes of the all-reduce with which a warning says what the limit costs."""
_WORTH = 0.95


@dataclass(frozen=True, slots=True)
class OnGpus:
    """The call on some of the GPUs of a node: its seconds, and bus bandwidth in bytes/s."""

    gpus: int
    seconds: float
    busbw: float


@dataclass(frozen=True, slots=True)
class FewRings:
    """A call whose library takes only `rings` rings on so many GPUs of a node.

    `counts` has the same call on 2 GPUs and more, and `lifted` it with NCCL_MIN_NCHANNELS.
    """

    gpus: int
    rings: int
    counts: Sequence[OnGpus]
    lifted: OnGpus


def few_rings(question: Question) -> FewRings | None:
    """What the limit costs; None where there is none, or more channels make the call no faster."""
    setup, shape = question.setup, question.setup.layout
    rings = _limit(setup) if question.strategy.by_nccl else 0
    if not rings:
        return None
    own, lifted = _ask(question, shape.n), _ask(_lifted(question), shape.n)
    if not _gains(own, lifted):
        return None
    whole = layout(setup.machine)
    counts = [
        _ask(replace(question, setup=setup.but(part=whole.only(range(n)))), n)
        for n in range(2, len(whole.tasks[0]) + 1)
    ]
    return FewRings(shape.n, rings, [each for each in counts if each], lifted) if lifted else None


def library_warning(setup: Setup, runtimes: Iterable[str]) -> str:
    """What the limit costs an all-reduce by one of these runtimes, and what to set; and whose
    constants the times have. "" where there is no limit, or more channels are not faster, and the
    constants are the generation's own.
    """
    if NCCL.name not in set(runtimes):
        return ""
    rings = _limit(setup)
    return "; ".join(filter(None, [_warning(setup, rings) if rings else "", setup.borrowed]))


@lru_cache(maxsize=64)
def _warning(setup: Setup, rings: int) -> str:
    strategy, n = parse_strategy("nccl"), setup.layout.n
    question = Question(strategy, tensor(_SAMPLE, 0), setup.running(strategy))
    own, lifted = _ask(question, n), _ask(_lifted(question), n)
    if not own or not lifted or not _gains(own, lifted):
        return ""
    size, times = units.format_size(_SAMPLE), [own.seconds, lifted.seconds]
    now, then = map(units.format_duration, times)
    return (
        f"RCCL takes {rings} rings on {n} GPUs of a node: an all-reduce of {size} takes {now},"
        f" {then} with NCCL_MIN_NCHANNELS={MIN_CHANNELS}"
    )


def _gains(own: OnGpus | None, lifted: OnGpus | None) -> bool:
    return own is not None and lifted is not None and lifted.seconds <= _WORTH * own.seconds


def _limit(setup: Setup) -> int:
    """The rings that the library allows on the GPUs; 0 where it allows as many as elsewhere."""
    if isinstance(setup.machine, Folded):
        return 0
    shape, rules = setup.layout, setup.layout.rules
    n, rings = range(shape.n), rules.limit(shape.n, several=shape.task_count > 1)
    if rings == rules.limit(2, several=False):
        return 0
    known = rules.listed([[shape.links[a][b] for b in n] for a in n], several=False)
    return 0 if known else rings


def _lifted(question: Question) -> Question:
    """The question with AMD's number of channels."""
    settings = replace(question.setup.nccl, min_channels=MIN_CHANNELS)
    return replace(question, setup=question.setup.but(nccl=settings))


def _ask(question: Question, n: int) -> OnGpus | None:
    strategy, setup = question.strategy, question.setup
    try:
        seconds = setup.simulate(question.compile()).seconds
    except InputError:
        return None
    rate = question.workload.nbytes / seconds * busbw_factor(strategy.collective, n)
    return OnGpus(n, seconds, rate)
