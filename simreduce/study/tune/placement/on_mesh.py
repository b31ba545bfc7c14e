"""The step of a mesh on an order of nodes.

On nodes that do not all share a switch, groups of an axis are no longer alike: all run at once, and
the slowest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.engine.setup import Setup
from simreduce.plan import Plan
from simreduce.study.scenario import Meshes
from simreduce.study.tune.placement.orders import bytes_between
from simreduce.training.calls import CallCost
from simreduce.training.mesh.costs import Costs, Group
from simreduce.training.mesh.job import MeshJob
from simreduce.training.mesh.simulate import simulate_mesh


@dataclass(frozen=True)
class OnMesh:
    """One mesh of a scenario, to be laid out on nodes."""

    meshes: Meshes
    job: MeshJob

    @property
    def name(self) -> str:
        return self.meshes.name

    @property
    def title(self) -> str:
        return self.meshes.title

    @property
    def setup(self) -> Setup:
        return self.meshes.setup

    @property
    def free(self) -> tuple[str, ...]:
        return self.meshes.free

    @property
    def worth(self) -> float:
        return self.meshes.worth

    def but(self, **changes: Any) -> Self:
        """The same mesh on another setup, by what `Setup.but` takes."""
        return replace(self, meshes=self.meshes.but(**changes))


@dataclass
class _AllGroups(Costs):
    """Costs where the slowest group counts; `moved` sums the bytes between nodes of one call of
    each kind.
    """

    moved: list[Floats] = field(default_factory=list)

    def _beside(self, group: Group, groups: Sequence[Group]) -> list[Group]:
        return [group, *(each for each in groups if each != group)]

    def _alike(self, axis: str, stage: int) -> int:  # noqa: ARG002 - stages lie on other nodes
        return stage

    def _together(self, plans: list[Plan]) -> CallCost:
        layout = self.setup.layout
        self.moved += [bytes_between(plan, layout) for plan in plans]
        return super()._together(plans)


def mesh_seconds(asked: OnMesh, setup: Setup) -> float:
    """Seconds of the step of a mesh on the nodes of a setup."""
    return simulate_mesh(asked.job, setup, _AllGroups(setup, asked.job.mesh)).seconds


def mesh_bytes(asked: OnMesh, setup: Setup) -> Floats:
    """The bytes that calls of a mesh move between nodes, one of each kind: what a search swaps
    nodes by, and no bound.
    """
    costs = _AllGroups(setup, asked.job.mesh)
    simulate_mesh(asked.job, setup, costs)
    count = len(setup.layout.tasks)
    return sum(costs.moved, np.zeros((count, count)))
