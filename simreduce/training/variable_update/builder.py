"""Builds the plan of one step, gradients in, variables out, with its contract."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import Contract, Plan, PlanBuilder, Promise, Value
from simreduce.planners.layouts import Layout
from simreduce.workload import Gradient, Workload


class StepBuilder:
    """Builds a step's plan.

    Every use of a gradient list has its own addresses: a variable's value is not its gradient, and
    two workers' updates of one variable are two results.
    """

    def __init__(self, workload: Workload, layout: Layout) -> None:
        self.b = PlanBuilder(layout.devices)
        self.layout = layout
        self.gradients = workload.gradients
        self.variable = len(layout.devices)
        """The contributor that represents a variable's updated value."""
        self._promises: list[Promise] = []
        self._next = 0

    def reserve(self) -> list[int]:
        """Reserve an address for each gradient, end to end."""
        addresses = []
        for gradient in self.gradients:
            addresses.append(self._next)
            self._next += gradient.elements
        return addresses

    def gradient(self, rank: int, i: int, lo: int) -> Value:
        """Gradient i as rank `rank` computed it."""
        return self.b.input(rank, lo, lo + self.gradients[i].elements, self.gradients[i].dtype)

    def mean_on(self, device: int, ranks: Sequence[int], i: int, lo: int) -> Value:
        """The mean over `ranks` of gradient i, computed on `device`."""
        total = self.b.add([self.b.copy(self.gradient(r, i, lo), device) for r in ranks])
        return self.b.scale(total, len(ranks))

    def update(self, mean: Value, ranks: Sequence[int], server: int) -> Value:
        """Bring a mean to the variable's server; it is a result there."""
        arrived = self.b.output(self.b.copy(mean, server))
        self._promise(arrived, frozenset(ranks), len(ranks))
        return arrived

    def variable_after(self, device: int, i: int, lo: int, after: Sequence[int]) -> Value:
        """Variable i on its device, after the ops `after` have updated it."""
        gradient: Gradient = self.gradients[i]
        hi = lo + gradient.elements
        return self.b.input(device, lo, hi, gradient.dtype, contributor=self.variable, after=after)

    def read(self, variable: Value, device: int) -> None:
        """Give `device` the variable for its next step."""
        self._promise(self.b.output(self.b.copy(variable, device)), frozenset([self.variable]), 1)

    def finish(self, mode: str) -> Plan:
        """The plan."""
        return self.b.finish(Contract.of(mode, self._promises))

    def _promise(self, value: Value, members: frozenset[int], divisor: int) -> None:
        self._promises.append(
            Promise(value.device, value.lo, value.hi, value.dtype, members, divisor)
        )
