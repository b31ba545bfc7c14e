"""What a library's limit of rings costs: the same call on each number of GPUs, and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simreduce.errors import InputError
from simreduce.planners.layouts import layout
from simreduce.study.question import Question
from simreduce.study.tune.bench import busbw_factor
from simreduce.topology import Folded

MIN_CHANNELS = 32
"""What AMD advises for NCCL_MIN_NCHANNELS on fewer than eight GPUs (ROCm/rccl pull 1270)."""


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
    """What the limit costs; None where there is none, or rings do not carry the call."""
    setup, shape = question.setup, question.setup.layout
    rules, n = shape.ring_rules, range(shape.n)
    rings = rules.limit(shape.n, several=False)
    if rings == rules.limit(2, several=False) or shape.task_count > 1:
        return None
    if isinstance(setup.machine, Folded) or not question.strategy.by_nccl:
        return None
    if rules.listed([[shape.links[a][b] for b in n] for a in n], several=False):
        return None
    whole = layout(setup.machine)
    counts = [
        _ask(replace(question, setup=setup.but(part=whole.only(range(n)))), n)
        for n in range(2, len(whole.tasks[0]) + 1)
    ]
    more = setup.but(nccl=replace(setup.nccl, min_channels=MIN_CHANNELS))
    lifted = _ask(replace(question, setup=more), shape.n)
    return FewRings(shape.n, rings, [each for each in counts if each], lifted) if lifted else None


def _ask(question: Question, n: int) -> OnGpus | None:
    strategy, setup = question.strategy, question.setup
    try:
        seconds = setup.simulate(question.compile()).seconds
    except InputError:
        return None
    rate = question.workload.nbytes / seconds * busbw_factor(strategy.collective, n)
    return OnGpus(n, seconds, rate)
