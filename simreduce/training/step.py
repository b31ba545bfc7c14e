"""Training steps: the job, its profile and its result.

A `Ledger` has what one step takes of the nodes of its execution, and the times they record.

How long each layer computes comes from one number, from FLOPs and an achieved rate, or from a file.

A file is CSV with the columns `layer`, `forward` and `backward`, or TOML (`PROFILE`). It has each
layer of the model once; a gradient list has one layer for each gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from simreduce.computing import group_by
from simreduce.engine.lowering import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files import parse_toml, read_text
from simreduce.files.formats import DURATION, LINE, Field, Format, TablesOf
from simreduce.files.formats.syntax import Faults, read_csv
from simreduce.plan import Plan
from simreduce.training.calls import Reduction
from simreduce.training.eager import MEGATRON
from simreduce.training.executions import COMPUTE, UPDATE
from simreduce.training.executor import Lost, Ran
from simreduce.training.gpus import Gpu
from simreduce.units import first_few, format_size
from simreduce.workload import ACTIVATION_SOURCES, Model

_LAYER = Format(
    "layers",
    "The times of a layer.",
    Field("layer", LINE, "Its name in the model.", required=True),
    Field("forward", DURATION, "Time of the forward pass of one batch.", required=True),
    Field("backward", DURATION, "Time of the backward pass of one batch.", required=True),
)
PROFILE = Format(
    "profile",
    "How long each layer of a model computes for one batch on one device.",
    Field("title", LINE, "What was measured."),
    Field("layers", TablesOf(_LAYER), "Every layer of the model.", required=True),
)


KERNELS_OF = "kernels of"
"""The beginning of the source of times that are predicted from kernels, not given."""


def compute_caution(source: str) -> str:
    """What a page says of times of compute with this source."""
    if source.startswith(KERNELS_OF):
        chapter = "mesh" if MEGATRON in source else "gpu"
        return (
            f"The time of compute is predicted from {source}; simreduce accuracy {chapter} says how"
            " far off such predictions are."
        )
    return f"The time of compute is an input, not a prediction: {source}."


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one batch on one device, by layer in the order of the forward pass.

    `source` is where they come from, in words. A recorded one also has the time of the `update`,
    and `notes` on what the record does not say.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    source: str
    update: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return sum(self.forward) + sum(self.backward)

    def rescale(self, measured: int, batch: int) -> Profile:
        """The profile of another batch, in proportion."""
        return self._times(batch / measured, f"in proportion, from a batch of {measured}")

    def faster(self, speed: float) -> Profile:
        """The profile of GPUs that are `speed` times as fast."""
        found = self._times(1.0 / speed, f"{speed:.4g} times as fast")
        return replace(found, update=self.update / speed)

    def repeat(self, shares: Sequence[float], words: str) -> Profile:
        """The profile whose backward passes also repeat these parts of the forward passes."""
        passes = zip(self.backward, self.forward, shares, strict=True)
        backward = tuple(back + share * seconds for back, seconds, share in passes)
        return Profile(self.forward, backward, f"{self.source}; {words}")

    def _times(self, factor: float, words: str) -> Profile:
        return replace(
            self,
            forward=tuple(factor * seconds for seconds in self.forward),
            backward=tuple(factor * seconds for seconds in self.backward),
            source=f"{self.source}; {words}",
        )


def profile_from_seconds(model: Model, seconds: float) -> Profile:
    """A profile of `seconds` for both passes, spread by FLOPs.

    Where no FLOPs are known, layers take equal times, a third of it forward.
    """
    whole = model.flops
    if not whole:
        layers, each = len(model.layers), seconds / len(model.layers)
        return Profile((each / 3,) * layers, (each * 2 / 3,) * layers, "one number, spread evenly")
    rate = whole / seconds if seconds else float("inf")
    return Profile(*_by_flops(model, 1, rate), f"one number, spread by FLOPs{_uncounted(model)}")


def profile_from_rate(model: Model, batch: int, rate: float) -> Profile:
    """A profile of `batch` samples at `rate` FLOP/s.

    InputError if a layer with gradients has no FLOPs.
    """
    if len(model.uncounted) == len(model.layers):
        raise InputError(f"{model.name}: nobody counted its FLOPs; give a time or a profile")
    without = [repr(layer.name) for layer in model.uncounted if layer.gradients]
    if without:
        raise InputError(
            f"{model.name}: nobody counted the FLOPs of {first_few(without, 5)};"
            " give them ('0 FLOP' for what takes no time), a time or a profile"
        )
    return Profile(
        *_by_flops(model, batch, rate), f"FLOPs at {rate / 1e12:g} TFLOP/s{_uncounted(model)}"
    )


def _uncounted(model: Model) -> str:
    """A remark on layers that take no time because their FLOPs are unknown."""
    count, layers = len(model.uncounted), len(model.layers)
    return f"; nothing for {count} of {layers} layers, whose FLOPs nobody counted" if count else ""


def _by_flops(model: Model, batch: int, rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (
        tuple(batch * layer.forward / rate for layer in model.layers),
        tuple(batch * layer.backward / rate for layer in model.layers),
    )


def load_profile(text: str, model: Model | None) -> Profile | None:
    """The times in the file `text`, for the layers of `model`; InputError lists every fault.

    Without a model, None after those faults that need none.
    """
    path = Path(text)
    content = read_text(path, InputError)
    faults = Faults(text)
    if path.suffix == ".toml":
        values = PROFILE.read(parse_toml(text, content, InputError), faults)
        rows = [(f"layers[{i}]", each) for i, each in enumerate(values["layers"] or ())]
    else:
        lines = read_csv(content, _LAYER.keys, ",".join(_LAYER.keys), faults, InputError)
        cells = [(place, {k: cell for k, cell in row.items() if cell}) for place, row in lines]
        rows = [(place, _LAYER.read(row, faults, place)) for place, row in cells]
    known = [layer.name for layer in model.layers] if model else []
    layers = frozenset(known)
    times: dict[str, tuple[float, float]] = {}
    for place, row in rows:
        name = row["layer"]
        if name is None:
            continue
        if model and name not in layers:
            faults.add(place, f"{model.name} has no layer {quote(name)}{did_you_mean(name, known)}")
        elif name in times:
            faults.add(place, f"a second row for {name!r}")
        times.setdefault(name, (row["forward"], row["backward"]))
    missing = [name for name in known if name not in times]
    if missing and not faults.problems:
        faults.add("", f"no times for {first_few(missing, 5)}")
    faults.raise_any()
    if model is None:
        return None
    forward, backward = zip(*(times[name] for name in known), strict=True)
    return Profile(forward, backward, f"profile {path.name}")


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

    Its `kernels` have the profile of any GPU, if they are known. They slow down beside a collective
    as `simreduce.training.interference` says, or, where `interference` is a number, by that times
    its part of the SMs; of the `gpu`, or if it is None of the machine's.

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
    interference: float | None = None
    gpu: Gpu | None = None
    kernels: Callable[[Gpu], Profile] | None = field(default=None, compare=False, repr=False)

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


class PassMoment(NamedTuple):
    """Bytes that a GPU holds at a moment of a pass, besides parameters and optimizer states.

    They are tensors that autograd `kept`, conversions of parameters (`casts`), and logits with
    their gradients (`logits`). A `part` of the parameters' gradients is there.
    """

    at: str = ""
    kept: int = 0
    casts: int = 0
    logits: int = 0
    part: float = 0.0

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.kept + self.casts + self.logits


class Activations(NamedTuple):
    """Bytes that a GPU holds for the activations of one pass, and where they come from.

    `moments` has those at which a GPU may hold most, where that is known.
    """

    nbytes: int = 0
    source: str = NOT_COUNTED
    moments: tuple[PassMoment, ...] = ()

    def rescale(self, batch: int, to: int) -> Activations:
        """Those of another batch, in proportion."""
        moments = tuple(
            each._replace(kept=each.kept * to // batch, logits=each.logits * to // batch)
            for each in self.moments
        )
        return self._replace(nbytes=self.nbytes * to // batch, moments=moments)

    def with_gradients(self) -> Activations:
        """The same where all gradients are there at every moment."""
        return self._replace(moments=tuple(each._replace(part=1.0) for each in self.moments))

    @property
    def words(self) -> str:
        """As text: `48.4 GB of activations (estimated)`, `activations not counted`."""
        if self.source == NOT_COUNTED:
            return "activations not counted"
        return f"{format_size(self.nbytes)} of activations ({self.source})"


UNCOUNTED = Activations()


RESERVED = 0.06
"""The part by which PyTorch's allocator reserves more than is allocated at most: 4 to 8 % in seven
steps of GPT-2 and BERT on an H200.
"""
CONTEXT = 850_000_000
"""Bytes of CUDA's context with the kernels of PyTorch (805 MB beside what PyTorch reserved on an
H200), and the workspace of cuBLAS.
"""
LEFT = 0.05
"""The part of a GPU's memory that is left where a step fits."""
SPREAD = 0.07
"""Standard deviation of log(reserved / predicted): eleven steps of torchtitan whose memory was
published, are 2 % less to 20 % more (`tests/training/mesh/test_held.py`).
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a device holds for parameters.

    It holds some all the time, by what they are, and some at most for a while: `gathered`
    parameters, never more than `gathered_limit`, and gradients of its own passes that are not
    reduced yet (`unreduced`). `peak` is the most of all at once, with `activations` where they
    count, which are those of so many passes `in_flight`. Where its moment is known, it is `most`.
    DDP has copies of all gradients in `buckets`. In steps of PyTorch (`plain`) the allocator
    reserves more than the peak; of a mesh nobody measured how much. Beside it, communicators of
    NCCL hold `nccl_buffers` where they are known.
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
    buckets: int = 0
    most: PassMoment = PassMoment()  # noqa: RUF009 - a named tuple
    plain: bool = True
    nccl_buffers: int = 0

    def plus(self, activations: Activations) -> Memory:
        """The same with these activations.

        Gradients are freed after the optimizer's step, and come back one by one.
        """
        if not activations.moments:
            return replace(self, activations=activations, peak=self.peak + activations.nbytes)
        most = max(activations.moments, key=self._at)
        activations = activations._replace(nbytes=most.kept)
        gradients, peak = round(most.part * self.gradients), self.peak + self._at(most)
        return replace(self, gradients=gradients, activations=activations, peak=peak, most=most)

    def with_buckets(self) -> Memory:
        """The same with DDP's buckets, which have copies of gradients that are no views."""
        return replace(self, buckets=self.gradients, peak=self.peak + self.gradients)

    def _at(self, moment: PassMoment) -> int:
        """What it holds more at a moment than with all gradients and no activations."""
        return moment.nbytes - round((1.0 - moment.part) * (self.gradients + self.unreduced))

    @property
    def needed(self) -> int:
        """The memory of a GPU on which it fits: with what the allocator reserves, the context of
        CUDA, NCCL's buffers, and a part left.
        """
        reserved = self.peak * (1.0 + RESERVED * self.plain)
        return round((reserved + CONTEXT + self.nccl_buffers) / (1.0 - LEFT))


@dataclass(frozen=True, slots=True)
class Span:
    """A layer's pass on a device or group; seconds from the start of the step.

    It `lost` seconds beside each of what was in flight.
    """

    device: str
    layer: str
    backward: bool
    begin: float
    end: float
    lost: Lost = ()


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


SLOWED, HOST, DATA = "interference", "host", "data"
SPENT_ON: Mapping[str, str] = {
    COMPUTE: "kernels",
    "tp": "tensor parallel sums",
    "cp": "keys and values of other ranks",
    "ep": "experts' all-to-all",
    "etp": "sums within experts",
    "pipeline": "other stages: the bubble, and sends",
    DATA: "gradients and parameters of replicas",
    SLOWED: "kernels slowed down by what moves beside them",
    HOST: "launches by the host",
    UPDATE: "the optimizer",
}
"""What a rank does or waits for in a step, in words."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The prediction for one step of all `devices`, which takes so many `samples`; times in
    seconds.

    `spent` says what the slowest rank, or of a mesh the one that ends last, does or waits for how
    long, by `SPENT_ON`. Other devices await its compute for `waiting` on average. During
    `communication` at least one transfer was in flight. `held` has what a rank of each pipeline
    stage holds; nothing where servers hold variables. A sample may have `tokens`.

    Where steps differ, this is the last. If they never become equal (`settled`), `seconds` is the
    mean of the later half. With faults, `slowest` is the longest step, if it took longer.

    A sharded step says how much of the exposed time is due to each collective (`exposed_by`). A
    `composed` one is put together from its calls (`study.tune.composed`). `path` is the critical
    path, whose pieces add up to the last step that was simulated. Steps of meshes have it, and all
    nodes that `ran`, only for those who look closely.
    """

    method: str
    devices: int
    samples: int
    seconds: float
    spent: tuple[tuple[str, float], ...] = ()
    held: tuple[Memory, ...] = ()
    communication: float = 0.0
    buckets: tuple[Bucket, ...] = ()  # in the order of their starts
    reads: tuple[Bucket, ...] = ()
    spans: tuple[Span, ...] = ()  # device by device
    simulated: tuple[float, ...] = ()  # of every step, the described one last
    settled: bool = True
    waiting: float = 0.0
    slowest: StepResult | None = None
    exposed_by: tuple[tuple[str, float], ...] = ()
    composed: bool = False
    path: tuple[PathPiece, ...] = ()
    ran: tuple[Ran, ...] = ()
    tokens: int = 0

    @property
    def by(self) -> dict[str, float]:
        """Seconds by what they are spent on."""
        return dict(self.spent)

    @property
    def compute(self) -> float:
        """Seconds of the slowest device's passes, as long as they take alone."""
        return self.by.get(COMPUTE, 0.0)

    @property
    def update(self) -> float:
        """Seconds of the update of the variables."""
        return self.by.get(UPDATE, 0.0)

    @property
    def launch(self) -> float:
        """Seconds of starting the step, or its kernels."""
        return self.by.get(HOST, 0.0)

    @property
    def interference(self) -> float:
        """Seconds that the passes take longer beside collectives."""
        return self.by.get(SLOWED, 0.0)

    @property
    def exposed(self) -> float:
        """Seconds of communication, and of waits for other ranks, that no compute hides."""
        own = self.launch + self.compute + self.update + self.interference
        return max(self.seconds - own, 0.0)

    @property
    def limit(self) -> str:
        """What it does or waits for the longest, by `SPENT_ON`."""
        return max(self.spent, key=itemgetter(1), default=(COMPUTE, 0.0))[0]

    @property
    def memory(self) -> Memory | None:
        """What the fullest rank holds, where that is known."""
        return max(self.held, key=lambda each: each.peak, default=None)

    @property
    def lanes(self) -> list[tuple[str, list[Bucket]]]:
        """The transfers by lane."""
        reads = [("reads", list(self.reads))] if self.reads else []
        return [*reads, *group_by(self.buckets, lane).items()]

    @property
    def samples_per_second(self) -> float:
        """Samples of all devices a second."""
        return self.samples / self.seconds if self.seconds else float("inf")

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all replicas a second."""
        return self.samples * self.tokens / self.seconds


@dataclass(frozen=True)
class SimulatedStep:
    """A step with what moves in it.

    `alone` is the time of all its transfers with every gradient there from the start, in seconds;
    `wrong` counts elements of their plans, which `digest` names. `bottleneck` is the link or memory
    that they need for the longest, "" if nothing moves.
    """

    step: StepResult
    alone: float = 0.0
    wrong: int = 0
    digest: str = ""
    bottleneck: str = ""


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

    step: StepResult
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
