"""What lies between workers and parameter servers: plain delays, or flows on the engine's fabric.

Variables and gradients are what moves. Messages without content (a worker is done, a token, the chief's next round) take
the latency of their way and no bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import simpy

from simreduce.engine import CALM, NOMINAL, TENSORFLOW, Calibration, Disturbance, Fabric, Runtime, Standing
from simreduce.engine.floors import alone
from simreduce.engine.lower import Lowered, Resources, lower
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.topology import Topology

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """Seconds, whatever else is under way. `pull[w]`: until worker w has all variables; `push[w, v]`: until its gradient
    is at the accumulator of variable v; `report[v]`: a message from the server of v to the token queue; `token[w]`: one
    from the queue to worker w; `again[v]`: from the queue to the chief and on to the server of v.
    """

    pull: Floats
    push: Floats
    report: Floats
    token: Floats
    again: Floats

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.pull)

    @property
    def variables(self) -> int:
        """How many variables there are."""
        return len(self.report)

    def opened(self, env: simpy.Environment) -> Way:
        """The network of one run."""
        return _Plain(env, self)


def delays(
    workers: int, variables: int, pull: float = 0.0, push: float = 0.0, message: float = 0.0
) -> Delays:
    """The same delays for all: seconds of one worker's variables, of one gradient, of a message. The chief is its own
    neighbour, and so is the queue.
    """
    return Delays(
        pull=np.full(workers, pull),
        push=np.full((workers, variables), push),
        report=np.full(variables, message),
        token=np.full(workers, message),
        again=np.full(variables, 2.0 * message),
    )


@dataclass(frozen=True, eq=False)
class Flows:
    """Variables and gradients share a machine's links. `workers` and `servers` are devices of the topology, where worker w
    is and variable v is kept; the token queue is with the first variable, the chief is worker 0. `nbytes[v]` is what
    the variable, and its gradient, has. Jitter of the disturbance is that of a transfer, the same every time it is made.

    InputError if a device is not there.
    """

    topology: Topology
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    nbytes: tuple[int, ...]
    runtime: Runtime = TENSORFLOW
    calibration: Calibration = NOMINAL
    disturbance: Disturbance = CALM

    def __post_init__(self) -> None:
        nodes = self.topology.nodes
        named = dict.fromkeys((*self.workers, *self.servers))
        problems = [
            f"{self.topology.name}: no device {name!r}{did_you_mean(name, nodes)}"
            for name in named
            if name not in nodes
        ]
        if len(self.servers) != len(self.nbytes):
            problems.append(f"{len(self.servers)} servers for {len(self.nbytes)} variables: one each")
        problems += [
            f"variable {v}: 0 bytes or more, not {size}" for v, size in enumerate(self.nbytes) if size < 0
        ]
        if problems:
            raise InputError(problems)

    def opened(self, env: simpy.Environment) -> Way:
        """The network of one run."""
        return _Shared(env, self)

    @cached_property
    def uncontended(self) -> Delays:
        """The same transfers, each as if it were alone: what flows take where no two share a link. Without faults."""
        calm = replace(self.disturbance, faults=(), jitter=0.0)
        resources = Resources.of(self.topology, self.calibration, calm)
        transfers = _Transfers(
            lambda plan: lower(plan, self.topology, self.runtime, self.calibration, resources, None, calm)
        )

        def seconds(source: str, target: str, nbytes: int) -> float:
            moved = transfers.of([source], target, [nbytes])
            return float(alone(moved[1], resources)[0].max()) if moved else 0.0

        def latency(source: str, target: str) -> float:
            moved = transfers.of([source], target, [0])
            return float(moved[1].latency.max()) if moved else 0.0

        kept = list(zip(self.servers, self.nbytes, strict=True))
        chief, queue = self.workers[0], self.servers[0]
        return Delays(
            pull=np.array([max(seconds(s, w, size) for s, size in kept) for w in self.workers]),
            push=np.array([[seconds(w, s, size) for s, size in kept] for w in self.workers]),
            report=np.array([latency(s, queue) for s in self.servers]),
            token=np.array([latency(queue, w) for w in self.workers]),
            again=np.array([latency(queue, chief) + latency(chief, s) for s in self.servers]),
        )


class _Transfers:
    """Copies to one device each; what is sent between the same devices is lowered once."""

    def __init__(self, lowered: Callable[[Plan], Lowered]) -> None:
        self._lowered = lowered
        self._known: dict[tuple[str, ...], tuple[Plan, Lowered]] = {}

    def of(self, sources: Sequence[str], target: str, sizes: Sequence[int]) -> tuple[Plan, Lowered] | None:
        """One copy from every source to the target, of so many bytes; None if all of them are there."""
        away = [(source, size) for source, size in zip(sources, sizes, strict=True) if source != target]
        if not away:
            return None
        ends = (target, *(source for source, _ in away))
        if ends not in self._known:
            devices = tuple(dict.fromkeys(ends))
            b = PlanBuilder(devices)
            for i, (source, _) in enumerate(away):
                b.copy(b.input(devices.index(source), i, i + 1), 0)
            plan = b.finish(Contract.of("transfer", []))
            self._known[ends] = plan, self._lowered(plan)
        plan, lowered = self._known[ends]
        # Bytes are any number here, and those of a plan are whole elements.
        amount = np.array([each for _, size in away for each in (0.0, float(size))])
        return plan, replace(lowered, amount=amount)


class Way(Protocol):
    """The network of one run: events of SimPy that happen when what is sent has arrived."""

    messages: Delays

    def pull(self, worker: int) -> simpy.Event:
        """All variables, to a worker."""

    def push(self, worker: int, variable: int) -> simpy.Event:
        """A gradient, to its accumulator."""


class _Plain:
    def __init__(self, env: simpy.Environment, delays: Delays) -> None:
        self._env, self.messages = env, delays
        self._pull, self._push = delays.pull.tolist(), delays.push.tolist()

    def pull(self, worker: int) -> simpy.Event:
        return self._env.timeout(self._pull[worker])

    def push(self, worker: int, variable: int) -> simpy.Event:
        return self._env.timeout(self._push[worker][variable])


class _Shared:
    def __init__(self, env: simpy.Environment, flows: Flows) -> None:
        self._env, self.messages = env, flows.uncontended
        fabric = Fabric(env, flows.topology, flows.calibration, flows.runtime, flows.disturbance)
        transfers = _Transfers(fabric.lower)

        def often(sources: Sequence[str], target: str, sizes: Sequence[int]) -> _Often | None:
            moved = transfers.of(sources, target, sizes)
            return _Often(partial(fabric.standing, *moved)) if moved else None

        kept = list(zip(flows.servers, flows.nbytes, strict=True))
        self._pull = [often(flows.servers, w, flows.nbytes) for w in flows.workers]
        self._push = [[often([w], s, [size]) for s, size in kept] for w in flows.workers]

    def pull(self, worker: int) -> simpy.Event:
        return self._moved(self._pull[worker])

    def push(self, worker: int, variable: int) -> simpy.Event:
        return self._moved(self._push[worker][variable])

    def _moved(self, transfer: _Often | None) -> simpy.Event:
        return transfer.submit() if transfer else self._env.timeout(0.0)


class _Often:
    """A transfer that is made again and again. What a worker had under way when it died ends by itself, beside what it sends
    when it is back.
    """

    def __init__(self, make: Callable[[], Standing]) -> None:
        self._make, self._plans = make, [make()]

    def submit(self) -> simpy.Event:
        free = next((each for each in self._plans if not each.under_way), None)
        if free is None:
            free = self._make()
            self._plans.append(free)
        return free.submit()
