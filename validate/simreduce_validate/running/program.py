"""Programs that a route builds and runs: variables on devices, and the ops of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from simreduce import dtypes
from simreduce.plan import Kind, Plan
from simreduce.plan.plan import IN_PLACE
from simreduce_validate.running.contents import Contents, difference, unmade

Array: TypeAlias = npt.NDArray[Any]


class Variable(NamedTuple):
    """A tensor of one axis that stays on a TensorFlow device between steps."""

    name: str
    device: str
    dtype: str
    elements: int


class Event(NamedTuple):
    """What a device did in a step, in seconds since its first event. `name` begins with `op12` for
    op 12 of a plan, with `again1/op12` in its first repetition. A transfer between processes is an
    event of the receiver, `RecvTensor` and the name of what was sent; the receiver's own op has the
    name of the COPY. Its time is in whole microseconds, and each worker has its own clock.
    """

    device: str
    name: str
    start: float
    finish: float


class Made(NamedTuple):
    """The tensors that a step makes. `results` are those of every OUTPUT, end to end, one for each
    of its variables. `loose` are tensors that no result needs.
    """

    results: Mapping[int, Sequence[Any]]
    loose: Sequence[Any] = ()


Intervals: TypeAlias = Sequence[tuple[int, int]]
"""Adjacent [lo, hi)."""


class Runner(Protocol):
    """A program that is ready to run."""

    graph: Any
    """What was built, which knows the shape of every tensor."""

    def load(self, contents: Mapping[str, Array]) -> None:
        """Set all variables that a step reads, by name, before it runs."""

    def run(self) -> None:
        """One step; returns when all results are on their devices."""

    def read(self, names: Sequence[str]) -> list[Array]:
        """The values of variables that a step wrote."""

    def partitions(self) -> list[Any]:
        """A step, and the `GraphDef` that each device executed for it."""

    def trace(self) -> list[Event]:
        """A step, and when each of its ops began and ended."""

    def close(self) -> None:
        """Free what it holds on the devices."""


@dataclass(frozen=True, slots=True)
class Program:
    """The INPUTs of `plan` are what it is given, its OUTPUTs and contract what it must make; `body`
    is what it does.

    `place` is the TensorFlow device of every device of the plan. `body` adds the ops of a step to
    the current graph, given the variable of every INPUT. A step makes the results `chained` times.
    """

    plan: Plan
    place: tuple[str, ...]
    body: Callable[[Mapping[int, Any]], Made]
    chained: int = 1

    @property
    def given(self) -> dict[int, Variable]:
        """By INPUT."""
        plan = self.plan
        return {
            op: self._variable(f"given{op}", op, *_interval(plan, op))
            for op in _of_kind(plan, Kind.INPUT)
        }

    @property
    def results(self) -> dict[int, list[Variable]]:
        """By OUTPUT, a variable for each of its parts, so that a result in parts need not be joined
        to be kept.
        """
        return {
            op: [
                self._variable(f"kept{op}_{i}", op, lo, hi)
                for i, (lo, hi) in enumerate(parts(self.plan, op))
            ]
            for op in _of_kind(self.plan, Kind.OUTPUT)
        }

    def _variable(self, name: str, op: int, lo: int, hi: int) -> Variable:
        return Variable(
            name, self.place[self.plan.device[op]], dtypes.NAMES[self.plan.dtype[op]], hi - lo
        )


def parts(plan: Plan, op: int) -> Intervals:
    """The intervals in which the value of an op lies on its device: several if CONCATs in place
    made it.
    """
    kind, operands = plan.kind[op], plan.operands_of(op)
    if kind == Kind.CONCAT and plan.arg[op] == IN_PLACE:
        return [part for operand in operands for part in parts(plan, operand)]
    if kind == Kind.OUTPUT and _interval(plan, operands[0]) == _interval(plan, op):
        return parts(plan, operands[0])
    return [_interval(plan, op)]


def load(program: Program, runner: Runner, contents: Contents) -> None:
    """Put the numbers of every INPUT where they belong."""
    runner.load({variable.name: contents.given(op) for op, variable in program.given.items()})


def faults(program: Program, runner: Runner, contents: Contents) -> list[str]:
    """Results of the last step that break the contract: device, interval and first wrong
    element.
    """
    plan = program.plan
    found = list(unmade(plan))
    results = program.results
    held = iter(
        runner.read([variable.name for variables in results.values() for variable in variables])
    )
    for op, variables in results.items():
        where = plan.devices[plan.device[op]]
        parts = [next(held) for _ in variables]
        got = np.concatenate(parts) if parts[1:] else parts[0]
        if got.dtype != contents.dtype:
            got = got.astype(np.float64)
        found.append(difference(where, int(plan.lo[op]), got, contents.promised(op)))
    return [text for text in found if text]


def _interval(plan: Plan, op: int) -> tuple[int, int]:
    return int(plan.lo[op]), int(plan.hi[op])


def _of_kind(plan: Plan, kind: Kind) -> list[int]:
    found: list[int] = np.flatnonzero(plan.kind == kind).tolist()
    return found
