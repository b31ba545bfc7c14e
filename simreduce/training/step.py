"""Training steps: the job, and its prediction.

The ledger of one step: what it has of the nodes of its execution, and the times they record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from simreduce.engine.lowering.lowering import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Plan
from simreduce.training.gpus import INTERFERENCE, Gpu
from simreduce.training.profile import Profile
from simreduce.training.reductions import Reduction
from simreduce.units import format_size
from simreduce.workload import ACTIVATION_SOURCES, Model

STRONG, RELAXED, STAGED = CONSISTENCIES = ("strong", "relaxed", "staged")
"""`strong`: a step reduces its own gradients and computes with current variables. `relaxed`: it
reduces the gradients of the step before (`--variable_consistency=relaxed`). `staged`: it computes
with variables read one step earlier (`--staged_vars`).
"""


@dataclass(frozen=True, slots=True)
class StepJob:
    """The compute of every device in a step.

    It is `accumulate` passes of `batch` samples, then `update` seconds on the variables. A device
    takes `slow[device]` times as long. Besides, devices differ by chance, with the standard
    deviation `spread` in parts of their time, and all wait for the slowest (`groups.slowest_of`):
    for what is expected, or for the `part` of all draws.

    Kernels slow down beside a collective by `interference` times its part of the SMs of the `gpu`,
    or if it is None of the machine's.

    With `no_sync` only the last pass reduces gradients, which are sums over the passes; else every
    pass does.
    """

    model: Model
    profile: Profile
    batch: int
    update: float = 0.0
    consistency: str = STRONG
    barrier: bool = True
    slow: Mapping[str, float] = field(default_factory=dict)
    accumulate: int = 1
    no_sync: bool = True
    spread: float = 0.0
    part: float | None = None
    interference: float = INTERFERENCE
    gpu: Gpu | None = None

    def __post_init__(self) -> None:
        if self.consistency not in CONSISTENCIES:
            near, known = did_you_mean(self.consistency, CONSISTENCIES), ", ".join(CONSISTENCIES)
            raise InputError(f"consistency: unknown {self.consistency!r}{near}; one of {known}")
        if self.update and not self.barrier:
            raise InputError(
                "update: without a barrier there is no time at which all variables are updated"
            )
        if self.accumulate > 1 and self.consistency != STRONG:
            raise InputError("accumulate: needs strong consistency")

    @property
    def compute(self) -> float:
        """Seconds of all passes on a device of the profile's speed."""
        return self.accumulate * self.profile.seconds

    @property
    def reduces_once(self) -> bool:
        """Whether each step ends before the next, and reduces its own gradients once."""
        own = self.barrier and self.consistency == STRONG
        return own and (self.accumulate == 1 or self.no_sync)

    def ready(self, factor: float) -> tuple[list[float], float]:
        """When each gradient is ready in the last pass of a step, and the end of its passes, in
        seconds.

        The slowest rank takes `factor` times as long as the profile says, and nothing else.
        """
        profile = self.profile
        before = factor * (sum(profile.forward) + (self.accumulate - 1) * profile.seconds)
        backward = (factor * seconds for seconds in reversed(profile.backward))
        _, *ends = accumulate(backward, initial=before)
        return [ends[-1 - layer] for layer in self.layer_of], ends[-1]

    @property
    def layer_of(self) -> list[int]:
        """The layer of each gradient."""
        return [i for i, layer in enumerate(self.model.layers) for _ in layer.gradients]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients of `ranks`, by index, reduced together; or variables that they read.

    Times are seconds from the start of the step. Where devices do not wait for each other, a bucket
    is `ready` when the first device is. In sharded methods, `collective` moves the bucket, and
    `nbytes` is the size of the unit's flat parameter, or of the shard that replicas all-reduce.
    """

    gradients: tuple[int, ...]
    ranks: tuple[int, ...]
    nbytes: int
    ready: float
    start: float
    finish: float
    collective: str = ""


GIVEN, ESTIMATED, NOT_COUNTED = ACTIVATION_SOURCES


class Activations(NamedTuple):
    """Bytes that a GPU holds for the activations of one pass, and where they come from."""

    nbytes: int = 0
    source: str = NOT_COUNTED

    def rescale(self, batch: int, to: int) -> Activations:
        """Those of another batch, in proportion."""
        return self._replace(nbytes=self.nbytes * to // batch)

    @property
    def words(self) -> str:
        """As text: `48.4 GB of activations (estimated)`, `activations not counted`."""
        if self.source == NOT_COUNTED:
            return "activations not counted"
        return f"{format_size(self.nbytes)} of activations ({self.source})"


UNCOUNTED = Activations()


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a device holds for parameters.

    It holds some all the time, by what they are, and some at most for a while: `gathered`
    parameters, never more than `gathered_limit`, and gradients of its own passes that are not
    reduced yet (`unreduced`). `peak` is the most of all at once, with `activations` where they
    count, which are those of so many passes `in_flight`.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int = 0
    gathered_limit: int = 0
    unreduced: int = 0
    peak: int = 0
    activations: Activations = UNCOUNTED
    in_flight: int = 1

    def plus(self, activations: Activations) -> Memory:
        """The same with these activations."""
        return replace(self, activations=activations, peak=self.peak + activations.nbytes)


@dataclass(frozen=True, slots=True)
class Span:
    """A layer's pass on a device or group; seconds from the start of the step."""

    device: str
    layer: str
    backward: bool
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A piece of a step's critical path, from `begin` to `end` in seconds of the step.

    `name` is the layer, or the lane of a transfer; `bucket` what is transferred.
    """

    kind: str
    name: str
    begin: float
    end: float
    bucket: Bucket | None = None

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """The prediction for one step; times in seconds.

    `launch` is the cost of starting it, `compute` that of the slowest device, which the others
    await for `waiting` on average; it takes `interference` longer beside collectives. During
    `communication` at least one transfer was in flight.

    Where steps differ, this is the last. If they never become equal (`settled`), `seconds` is the
    mean of the later half. With faults, `slowest` is the longest step, if it took longer.

    A sharded step says how much of the exposed time is due to each collective (`exposed_by`), and
    its `memory`. A `composed` one is put together from its calls (`study.tune.composed`). `path` is
    the critical path, whose pieces add up to the last step that was simulated.
    """

    method: str
    devices: int
    batch: int
    seconds: float
    compute: float
    update: float
    communication: float
    buckets: tuple[Bucket, ...]  # in the order of their starts
    reads: tuple[Bucket, ...]
    spans: tuple[Span, ...]  # device by device
    simulated: tuple[float, ...]  # of every step, the described one last
    settled: bool
    launch: float = 0.0
    waiting: float = 0.0
    slowest: StepPrediction | None = None
    accumulate: int = 1
    exposed_by: tuple[tuple[str, float], ...] = ()
    memory: Memory | None = None
    composed: bool = False
    interference: float = 0.0
    path: tuple[PathPiece, ...] = ()

    @property
    def exposed(self) -> float:
        """Seconds of communication that back-propagation does not hide."""
        own = self.launch + self.compute + self.update + self.interference
        return max(self.seconds - own, 0.0)

    @property
    def lanes(self) -> list[tuple[str, list[Bucket]]]:
        """The transfers by lane."""
        found: dict[str, list[Bucket]] = {"reads": list(self.reads)} if self.reads else {}
        for bucket in self.buckets:
            found.setdefault(lane(bucket), []).append(bucket)
        return list(found.items())

    @property
    def images_per_second(self) -> float:
        """Samples of all devices a second."""
        samples = self.devices * self.batch * self.accumulate
        return samples / self.seconds if self.seconds else float("inf")

    @property
    def later(self) -> tuple[float, ...]:
        """Seconds of each step of the later half."""
        return self.simulated[len(self.simulated) // 2 :]


@dataclass(frozen=True)
class SimulatedStep:
    """A step with what moves in it.

    `alone` is the time of all its transfers with every gradient there from the start, in seconds;
    `wrong` counts elements of their plans, which `digest` names. `bottleneck` is the link or memory
    that they need for the longest, "" if nothing moves.
    """

    step: StepPrediction
    alone: float
    wrong: int
    digest: str
    bottleneck: str


@dataclass(frozen=True, slots=True, eq=False)
class MovedBucket:
    """A bucket with the plan that moved it, lowered."""

    bucket: Bucket
    plan: Plan
    lowered: Lowered


@dataclass(frozen=True, slots=True, eq=False)
class StepRecording:
    """A prediction and what it was computed from.

    That is all that moved, reads included, and what it competed for.
    """

    step: StepPrediction
    moved: tuple[MovedBucket, ...]
    resources: Resources


def device_label(devices: Sequence[str], of: int) -> str:
    """A label: `8 GPUs` for all `of` them, else `gpu0`, or `gpu0 and 3 more`."""
    if len(devices) == 1:
        return devices[0]
    return f"{of} GPUs" if len(devices) == of else f"{devices[0]} and {len(devices) - 1} more"


def lane(bucket: Bucket) -> str:
    """Return the lane of a bucket in a timeline: its collective, or `reductions` without shards."""
    return bucket.collective.replace("_", "-") or "reductions"


@dataclass(slots=True)
class Ledger:
    """Nodes and records of one step from `begin` to `end` in seconds, with `faults` to come.

    Of its last pass, it has the nodes of all `transfers`, those after which a layer's variables are
    `updated` for the next step, and the reads that have `fetched` a layer's for a group. `moved`
    has every reduction and read.
    """

    begin: float
    faults: int
    transfers: list[int] = field(default_factory=list)
    updated: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    fetched: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    buckets: list[Bucket] = field(default_factory=list)
    reads: list[Bucket] = field(default_factory=list)
    moved: list[tuple[Bucket, Reduction]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    end: float = 0.0
