"""Parameter servers: their accumulators, and the network to the workers.

The network is plain delays, or flows on the fabric.

Plain delays have no contention between workers; a worker's own transfers share its links. Messages
without content (a worker is done, a token, the chief's next round) take the latency of their route
and no bandwidth.

TensorFlow's conditional accumulators sum a variable's gradients and drop stale ones. Numbers for a
run, values of variables and gradients, show who entered which update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import simpy

from simreduce.computing.arrays import Floats
from simreduce.computing.workers import as_piece
from simreduce.engine import Fabric, Resident
from simreduce.engine.lowering import Lowered, lower
from simreduce.engine.lowering.resources import Resources, core_owner
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, did_you_mean, refuse
from simreduce.plan import Contract, Plan, PlanBuilder

T = TypeVar("T")


class Messages(NamedTuple):
    """Delays of messages in seconds.

    `report[v]`: from the server of variable v to the token queue.
    `token[w]`: from the queue to worker w.
    `again[v]`: from the queue to the chief and on to the server of v.
    """

    report: Floats
    token: Floats
    again: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """Delays in seconds, whatever other workers do.

    `pull[w]`: until worker w has read all variables.
    `push[w, v]`: from when it sends all gradients until that of variable v is at its accumulator.
    """

    pull: Floats
    push: Floats
    messages: Messages

    def open(self, env: simpy.Environment) -> OpenNetwork:
        """The network of one run."""
        pull, push = self.pull.tolist(), self.push.tolist()
        return OpenNetwork(
            lambda worker: env.timeout(pull[worker]),
            lambda worker, variable: env.timeout(push[worker][variable]),
        )


def delays(
    workers: int, variables: int, pull: float = 0.0, push: float = 0.0, message: float = 0.0
) -> Delays:
    """The same delays for all: seconds to pull all variables, push one gradient, send a message."""
    return Delays(
        pull=np.full(workers, pull),
        push=np.full((workers, variables), push),
        messages=Messages(
            report=np.full(variables, message),
            token=np.full(workers, message),
            again=np.full(variables, 2.0 * message),
        ),
    )


def port_delays(workers: int, nbytes: Sequence[int], rate: float, latency: float) -> Delays:
    """Delays of workers with a port of `rate` bytes/s each way.

    A worker's simultaneous transfers share its port evenly. Every message takes `latency`; the
    token queue is on the server of the first variable.
    """
    sizes = np.array(nbytes, dtype=np.float64)
    order = np.argsort(sizes, kind="stable")
    ascending = sizes[order]
    # When a gradient is done, the port has carried all smaller ones and as much of each larger one.
    carried = np.empty(len(sizes))
    carried[order] = np.cumsum(ascending) + ascending * np.arange(len(sizes))[::-1]
    push = latency + carried / rate
    report = np.full(len(sizes), latency)
    report[0] = 0.0
    return Delays(
        pull=np.full(workers, float(push.max())),
        push=np.tile(push, (workers, 1)),
        messages=Messages(
            report=report,
            token=np.full(workers, latency),
            again=np.full(len(sizes), 2.0 * latency),
        ),
    )


@dataclass(frozen=True, eq=False)
class LinkNetwork:
    """Variables and gradients share a machine's links.

    `workers` and `servers` are devices of the topology, where worker w is and variable v is kept;
    the token queue is with the first variable, the chief is worker 0. `nbytes[v]` is what the
    variable, and its gradient, has. Jitter of the disturbance is that of a transfer, the same every
    time it is made.

    InputError if a device is not there.
    """

    setup: Setup
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    nbytes: tuple[int, ...]

    def __post_init__(self) -> None:
        nodes = self.setup.topology.nodes
        named = dict.fromkeys((*self.workers, *self.servers))
        servers, variables = len(self.servers), len(self.nbytes)
        refuse([
            *(
                f"{self.setup.topology.name}: no device {name!r}{did_you_mean(name, nodes)}"
                for name in named
                if name not in nodes
            ),
            *[f"{servers} servers for {variables} variables: one each"] * (servers != variables),
            *(
                f"variable {v}: 0 bytes or more, not {size}"
                for v, size in enumerate(self.nbytes)
                if size < 0
            ),
        ])  # fmt: skip

    def open(self, env: simpy.Environment) -> OpenNetwork:
        """The network of one run."""
        ways, at = lower_ways(self), self.setup
        fabric = Fabric(env, at.topology, at.calibration, at.runtime, at.disturbance, ways.lanes)

        def sender(way: Way | None) -> Callable[[], simpy.Event]:
            return _repeated(partial(fabric.resident, *way)) if way else partial(env.timeout, 0.0)

        pull = [*map(sender, ways.pull)]
        push = [[*map(sender, pushed)] for pushed in ways.push]
        return OpenNetwork(
            lambda worker: pull[worker](),
            lambda worker, variable: push[worker][variable](),
        )

    @cached_property
    def working_set(self) -> Mapping[str, float]:
        """Bytes of all values of a step with every worker, by the owner of the CPU cores.

        They are used to lower each transfer.
        """
        held: dict[str, float] = {}
        if (cpu := self.setup.calibration.cpu) is None:
            return held
        nodes, kept = self.setup.topology.nodes, list(zip(self.servers, self.nbytes, strict=True))
        # Variables and gradients on the devices that make them, and their copies.
        made = kept + [(worker, nbytes) for worker in self.workers for _, nbytes in kept]
        sent = [(end, n) for w in self.workers for s, n in kept if s != w for end in (w, s)]
        for device, nbytes in made + sent:
            owner = core_owner(cpu, nodes[device].machine)
            held[owner] = held.get(owner, 0.0) + nbytes
        return held

    @property
    def _calm_setup(self) -> Setup:
        return self.setup.but(disturbance=replace(self.setup.disturbance, faults=(), jitter=0.0))

    @cached_property
    def messages(self) -> Messages:
        """The latencies of the routes, without faults."""
        copies, _ = _lower_transfers(replace(self, setup=self._calm_setup))

        def latency(source: str, target: str) -> float:
            moved = copies([source], target, [0])
            return float(moved[1].by_op.latency.max()) if moved else 0.0

        chief, queue = self.workers[0], self.servers[0]
        return Messages(
            report=np.array([latency(s, queue) for s in self.servers]),
            token=np.array([latency(queue, w) for w in self.workers]),
            again=np.array([latency(queue, chief) + latency(chief, s) for s in self.servers]),
        )

    @cached_property
    def uncontended(self) -> Delays:
        """Delays of the same transfers with every worker alone, without faults."""
        alone = [
            replace(self, workers=(worker,), setup=self._calm_setup) for worker in self.workers
        ]
        return Delays(
            np.array([_time_pull(flows) for flows in alone]),
            np.array([_time_pushes(flows) for flows in alone]),
            self.messages,
        )


def _time_pull(flows: LinkNetwork) -> float:
    """Seconds until the first worker has all variables."""
    env = simpy.Environment()
    env.run(flows.open(env).pull(0))
    return float(env.now)


def _time_pushes(flows: LinkNetwork) -> Floats:
    """Seconds until each gradient of the first worker arrives, all sent at once."""
    env = simpy.Environment()
    way, arrived = flows.open(env), np.empty(len(flows.servers))

    def push(v: int) -> Generator[simpy.Event, Any, None]:
        yield way.push(0, v)
        arrived[v] = env.now

    env.run(env.all_of([env.process(push(v)) for v in range(len(arrived))]))
    return arrived


class OpenNetwork(NamedTuple):
    """The network of one run, as SimPy events.

    `pull(w)` comes when worker w has read all variables, `push(w, v)` when its gradient of variable
    v is at the accumulator.
    """

    pull: Callable[[int], simpy.Event]
    push: Callable[[int, int], simpy.Event]


Way = tuple[Plan, Lowered]
"""A transfer, lowered."""


class Ways(NamedTuple):
    """The lowered transfers of all workers.

    `pull[w]` brings all variables to worker w, and `push[w][v]` its gradient of variable v to the
    server; None where nothing leaves a device. `lanes` are numbers by name.
    """

    pull: tuple[Way | None, ...]
    push: tuple[tuple[Way | None, ...], ...]
    lanes: dict[str, int]


Copies = Callable[[Sequence[str], str, Sequence[int]], Way | None]
"""A copy of each size in bytes from each source to the target; None if none leaves a device."""


def _lower_transfers(flows: LinkNetwork) -> tuple[Copies, dict[str, int]]:
    """Copies to one device, and the numbers of their lanes; a set of devices is lowered once."""
    at = flows.setup
    resources = Resources.of(at.topology, at.calibration, at.disturbance)
    lanes: dict[str, int] = {}

    @cache
    def lowered(target: str, *sources: str) -> Way:
        devices = tuple(dict.fromkeys((target, *sources)))
        b = PlanBuilder(devices)
        for i, source in enumerate(sources):
            b.copy(b.input(devices.index(source), i, i + 1), 0)
        plan = b.finish(Contract.of("transfer", []))
        return plan, lower(
            plan, at.topology, at.runtime, at.calibration, resources, lanes, at.disturbance,
            flows.working_set,
        )  # fmt: skip

    def copies(sources: Sequence[str], target: str, sizes: Sequence[int]) -> Way | None:
        away = [pair for pair in zip(sources, sizes, strict=True) if pair[0] != target]
        if not away:
            return None
        plan, found = lowered(target, *(source for source, _ in away))
        # A plan counts whole elements; sizes here are any number of bytes.
        amount = np.array([each for _, size in away for each in (0.0, float(size))])
        return plan, replace(found, amount=amount)

    return copies, lanes


@as_piece
@lru_cache(maxsize=8)  # all repetitions share them
def lower_ways(flows: LinkNetwork) -> Ways:
    """The transfers of a network, each lowered once."""
    copies, lanes = _lower_transfers(flows)
    kept = list(zip(flows.servers, flows.nbytes, strict=True))
    return Ways(
        tuple(copies(flows.servers, w, flows.nbytes) for w in flows.workers),
        tuple(tuple(copies([w], s, [n]) for s, n in kept) for w in flows.workers),
        lanes,
    )


def _repeated(make: Callable[[], Resident]) -> Callable[[], simpy.Event]:
    """Starts a transfer that repeats.

    One in flight when a worker dies still ends, even beside those that the worker starts when it
    comes back.
    """
    plans = [make()]

    def submit() -> simpy.Event:
        free = next((each for each in plans if not each.under_way), None)
        if free is None:
            free = make()
            plans.append(free)
        return free.submit()

    return submit


class Slices(NamedTuple):
    """A gradient of some rows of a variable: `values[i]` belongs to row `indices[i]`."""

    indices: tuple[int, ...]
    values: Floats


class Accumulator(Generic[T]):
    """Counts gradients; subclasses also take their mean.

    `step` counts the means taken: gradients of earlier steps are stale.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.step = 0
        self._shape = shape
        self._held: list[T] = []

    @property
    def count(self) -> int:
        """Gradients that the next mean has so far."""
        return len(self._held)

    def apply(self, gradient: T, local_step: int) -> bool:
        """Add a gradient, unless it is stale; return whether it was added."""
        self._check(gradient)
        if local_step < self.step:
            return False
        self._held.append(gradient)
        return True

    def ready(self, required: int) -> bool:
        """Whether there are `required` gradients."""
        return self.count >= required

    def take(self) -> Any:
        """Take the mean of all gradients, also beyond those required; `step` grows by one."""
        mean = self._mean(self._held)
        self.step += 1
        self._held = []
        return mean

    def _check(self, gradient: T) -> None:
        """InputError if the gradient does not fit."""

    def _mean(self, gradients: list[T]) -> Any:
        """The mean of one gradient or more; None without numbers."""


class DenseAccumulator(Accumulator[Floats]):
    """Gradients of a variable's shape."""

    def _check(self, gradient: Floats) -> None:
        if np.shape(gradient) != self._shape:
            raise InputError(
                f"a gradient of shape {np.shape(gradient)} for a variable of shape {self._shape}"
            )

    def _mean(self, gradients: list[Floats]) -> Floats:
        return sum(gradients[1:], gradients[0]) / len(gradients)


class SparseAccumulator(Accumulator[Slices]):
    """Gradients of some rows.

    The mean is that of the equivalent dense gradients: ascending rows, each divided by the number
    of gradients.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        if not shape:
            raise InputError("a number has no rows: its gradient is dense")

    def _check(self, gradient: Slices) -> None:
        rows, *rest = self._shape
        named, given = len(gradient.indices), len(gradient.values)
        row = np.shape(gradient.values)[1:]
        outside = [row for row in gradient.indices if not 0 <= row < rows]
        checks = {
            f"{named} indices for {given} rows of a gradient": named != given,
            f"rows of shape {row} for a variable of shape {self._shape}":
                given > 0 and row != tuple(rest),
            f"row {next(iter(outside), None)} of a variable whose rows are 0 to {rows - 1}":
                len(outside) > 0,
        }  # fmt: skip
        refuse(words for words, wrong in checks.items() if wrong)

    def _mean(self, gradients: list[Slices]) -> Slices:
        total: dict[int, Any] = {}
        for row, value in (pair for each in gradients for pair in _pairs(each)):
            total[row] = total[row] + value if row in total else value
        rows = sorted(total)
        return Slices(tuple(rows), np.array([total[row] / len(gradients) for row in rows]))


def _pairs(gradient: Slices) -> Iterator[tuple[int, Any]]:
    return zip(gradient.indices, gradient.values, strict=True)


class UpstreamSparseAccumulator(SparseAccumulator):
    """Like `SparseConditionalAccumulator`.

    It divides each row by the number of gradients that have it, and merges lists as if they were
    ascending and without duplicates.
    """

    def _mean(self, gradients: list[Slices]) -> Slices:
        total: list[tuple[int, Any, int]] = []
        for gradient in gradients:
            old, new = deque(total), deque((row, value, 1) for row, value in _pairs(gradient))
            total = []
            while old and new:
                if old[0][0] == new[0][0]:
                    (row, a, count), (_, b, _) = old.popleft(), new.popleft()
                    total.append((row, a + b, count + 1))
                else:
                    total.append((old if old[0][0] < new[0][0] else new).popleft())
            total += [*old, *new]
        rows = tuple(row for row, _, _ in total)
        return Slices(rows, np.array([value / had for _, value, had in total]))


class GradientRequest(NamedTuple):
    """A request for a worker's gradient of a variable.

    It is in the worker's own step number `step` with a `local_step`; `read` is the value that the
    worker has read.
    """

    worker: int
    step: int
    local_step: int
    variable: int
    read: Floats


@dataclass(frozen=True, slots=True)
class VariableValues:
    """Variables that begin at `start`.

    `gradient` returns an array of a variable's shape, or for those in `sparse` `Slices`. Every
    update subtracts `rate` times the mean.

    With `decay`, every variable has a moving average, which begins at its start and after every
    update moves (1 - decay) of the way to the variable. `warm_up` limits the decay to
    (1 + n) / (10 + n) after update n, as `tf.train.ExponentialMovingAverage` does with
    `num_updates=global_step`.
    """

    start: tuple[Floats, ...]
    gradient: Callable[[GradientRequest], Any]
    rate: float = 1.0
    sparse: frozenset[int] = frozenset()
    decay: float | None = None
    warm_up: bool = False

    def accumulator(self, variable: int, *, faithful: bool) -> Accumulator[Any]:
        """An empty accumulator for a variable."""
        if variable in self.sparse:
            return (UpstreamSparseAccumulator if faithful else SparseAccumulator)(
                np.shape(self.start[variable])
            )
        return DenseAccumulator(np.shape(self.start[variable]))

    def update(self, weights: Floats, mean: Floats | Slices) -> Floats:
        """A variable after an update."""
        if not isinstance(mean, Slices):
            return weights - self.rate * mean
        found = weights.copy()
        np.subtract.at(found, np.array(mean.indices, dtype=np.int64), self.rate * mean.values)
        return found

    def average(self, average: Floats, weights: Floats, number: int) -> Floats:
        """A moving average after update `number`."""
        assert self.decay is not None  # noqa: S101 - there is none to ask for
        decay = min(self.decay, (1.0 + number) / (10.0 + number)) if self.warm_up else self.decay
        return average - (1.0 - decay) * (average - weights)
