"""What a training step is made of: the job, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simreduce.errors import InputError, did_you_mean
from simreduce.training.profile import Profile
from simreduce.workload import Model

STRONG, RELAXED, STAGED = CONSISTENCIES = ("strong", "relaxed", "staged")
"""Whether a step reduces its own gradients and reads the variables as they are then; `relaxed`: it
reduces those of the step before (`--variable_consistency=relaxed`); `staged`: it computes with
variables that were read a step ago (`--staged_vars`).
"""


@dataclass(frozen=True, slots=True)
class StepJob:
    """What every device computes in a step: `batch` samples, then `update` seconds on the
    variables. `slow[device]` is how many times as long a device takes for it.
    """

    model: Model
    profile: Profile
    batch: int
    update: float = 0.0
    consistency: str = STRONG
    barrier: bool = True
    slow: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.consistency not in CONSISTENCIES:
            near = did_you_mean(self.consistency, CONSISTENCIES)
            raise InputError(
                f"consistency: unknown {self.consistency!r}{near}; one of {', '.join(CONSISTENCIES)}"
            )
        if self.update and not self.barrier:
            raise InputError(
                "update: without a barrier there is no time at which all variables are updated"
            )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some gradients, by index, that `ranks` gave and that travelled together; or variables that
    they read. Times in seconds from the start of the step; where devices do not wait for one
    another, it is `ready` when the first is.
    """

    gradients: tuple[int, ...]
    ranks: tuple[int, ...]
    nbytes: int
    ready: float
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class Span:
    """A layer's pass on a device, or on all that are alike. Seconds from the start of the step."""

    device: str
    layer: str
    backward: bool
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """The prediction for one step. Times in seconds; `launch` is what it costs to start it,
    `compute` is that of the slowest device, for which the others wait `waiting` on average, and
    `communication` how long anything was on its way.

    Of steps that are not alike, the last is described; if they never come to be (`settled`),
    `seconds` is the mean of the later half. With faults, `slowest` is the one that took longest, if
    that was longer.
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
    # Seconds of every step, the described one last; those of the later half count if not settled.
    simulated: tuple[float, ...]
    settled: bool  # whether steps have come to take the same time
    launch: float = 0.0
    waiting: float = 0.0
    slowest: StepPrediction | None = None

    @property
    def exposed(self) -> float:
        """What back-propagation does not hide."""
        return max(self.seconds - self.launch - self.compute - self.update, 0.0)

    @property
    def images_per_second(self) -> float:
        """Samples of all devices, of whatever kind."""
        return self.devices * self.batch / self.seconds if self.seconds else float("inf")

    @property
    def later(self) -> tuple[float, ...]:
        """Seconds of the steps of the later half."""
        return self.simulated[len(self.simulated) // 2 :]


def device_label(devices: Sequence[str], of: int) -> str:
    """`8 GPUs` for all of them, `gpu0`, `gpu0 and 3 more`."""
    if len(devices) == 1:
        return devices[0]
    return f"{of} GPUs" if len(devices) == of else f"{devices[0]} and {len(devices) - 1} more"
