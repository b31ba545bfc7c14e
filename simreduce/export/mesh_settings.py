"""Programs that train on meshes: what they lack, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from simreduce.errors import InputError
from simreduce.export.choice import holding

if TYPE_CHECKING:
    from simreduce.training.mesh.job import MeshJob

MeshedJob: TypeAlias = "MeshJob"
"""What a program trains; only type checkers load it, as a bench trains nothing."""

ORDER = "tp-cp-ep-dp-pp"
"""The order in which programs lay ranks, unless they are told."""


@dataclass(frozen=True, slots=True)
class MeshProgram:
    """A program that trains on meshes.

    It has a `title` in sentences, and writes the `files` of a mesh. It knows `schedules`, `orders`
    of ranks and ways to split layers into stages; `limits` say with its title what else it lacks,
    and whether a mesh asks for that.
    """

    title: str
    files: Callable[[MeshedJob], Mapping[str, str]]
    limits: Callable[[str, MeshedJob], Mapping[str, bool]]
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    orders: tuple[str, ...] = (ORDER,)
    splits: tuple[str, ...] = ("even",)

    def why_not(self, job: MeshedJob) -> list[str]:
        """Why it cannot run a mesh; nothing if it can."""
        title, order = self.title, job.mesh.order
        return holding(
            {
                f"{title} has NCCL sum activations, not {job.tensor_all_reduce}": (
                    job.tensor_all_reduce != "nccl"
                ),
                f"{title} has no schedule {job.schedule}; it has {', '.join(self.schedules)}": (
                    job.mesh.pp > 1 and job.schedule not in self.schedules
                ),
                f"{title} does not lie ranks as {order}; it takes {' or '.join(self.orders)}": (
                    order not in self.orders
                ),
                f"{title} splits layers evenly, not as listed": job.splitting not in self.splits,
                **self.limits(title, job),
            }
        )

    def export(self, job: MeshedJob) -> Mapping[str, str]:
        """The files of a mesh by name. InputError with the reasons why there are none."""
        if problems := self.why_not(job):
            raise InputError(problems)
        return self.files(job)


def unwritten(title: str, job: MeshedJob, *, dispatch: bool = True) -> dict[str, bool]:
    """That settings of CUDA graphs, and of what moves tokens unless `dispatch` is false, are not
    written for a program.
    """
    what = ["cuda_graphs"] * bool(job.graphs) + ["dispatch"] * (
        dispatch and job.dispatch == "deepep"
    )
    return {f"settings of {' and '.join(what)} are not written for {title}": bool(what)}
