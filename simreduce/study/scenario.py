"""A question worth asking, as a TOML file: which reductions of what, on which machine.

With `[replicas]` instead of `[step]` it asks about synchronous replicas: that is another value,
`Replicas`, which needs no machine and no gradients, and sends its gradients to servers by no
strategy.

A reader reports every fault in the file, and in the files that it names, at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Self

from simreduce import units
from simreduce.engine import RUNTIMES
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import ScenarioError
from simreduce.export.frameworks import FRAMEWORKS as SYSTEMS, MESH_PROGRAMS, TRAINED
from simreduce.export.frameworks.nccl import NCCL
from simreduce.files.formats import (
    ANYTHING,
    FLAG,
    LINE,
    Field,
    Format,
    ListOf,
    MapOf,
    Scalar,
    TableOf,
    choice,
    number,
    quantity,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl import SETTINGS
from simreduce.planners.strategy import Strategy
from simreduce.topology import Topology
from simreduce.topology.loader import NONE, Overrides
from simreduce.training import STEP, StepQuestion, replicas
from simreduce.training.calls import CYCLE, FIXED
from simreduce.training.mesh import MeshJob
from simreduce.training.mesh.mesh_table import MESH, MeshQuestion
from simreduce.workload import Workload
from simreduce.workload.decoder import Sequences

NO_STEP = "it has no [step], which says what a step computes"
NO_TIMES = "it has no times of compute; simreduce tune and run look at its reductions alone"
CALL_COST = 25e-6
"""Seconds that a framework adds to every call of NCCL.

A bucket of PyTorch 2.13's DDP takes 23 to 31 us on one core, with its call of a process group
(`validate/pytorch/call_cost.py`).
"""
WORTH = 0.01
"""The part of a time that a change saves at least, unless the user says another."""

FRAMEWORKS = tuple(sorted(TRAINED, key=NCCL.name.__eq__))
"""Frameworks whose settings are recommended, and NCCL by itself last."""
REQUIRED = ("topology", "workload")

LoadMachine = Callable[[str, Overrides | None], Topology]


class _LaterTable(TableOf):
    """A table that is read once the machine and the model are known."""

    def take(self, value: object, faults: Faults, path: str) -> Any:  # noqa: ARG002 - read later
        """Return the table unread."""
        return value


def read_worth(value: object) -> float:
    """The part of a time that a change has to save; ValueError unless it is less than all."""
    found = units.share(value)
    if not 0.0 <= found < 1.0:
        raise ValueError("must be from 0 % to less than 100 %")
    return found


TUNED = Format(
    "tune",
    "What `simreduce tune` looks for.",
    Field("placement", FLAG, "The order of nodes that takes the least time, instead of settings.",
          default=False),
    Field("free", LINE, "Other nodes that the job may use instead of its own, such as `n[8-15]`.",
          default_words="none"),
)  # fmt: skip
SCENARIO = Format(
    "scenario",
    "Which reductions of what, on which machine. Only `[replicas]` can do without the first two"
    " keys.",
    Field("topology", LINE, "A shipped machine, a file, or a machine written inline."),
    Field("workload", LINE, "A shipped model, a file, or one gradient such as `bytes:64MiB`."),
    Field("title", LINE, "The title of reports.", default_words="the file's name"),
    Field("runtime", Scalar(LINE.words, {"enum": [*RUNTIMES, BY_STRATEGY.name]}, LINE.read),
          f"The runtime of all strategies: {', '.join(RUNTIMES)}; or `{BY_STRATEGY.name}`: of each"
          " its own.", BY_STRATEGY.name),
    Field("calibration", LINE, "A shipped calibration or a file.", "nominal"),
    Field("strategies",
          ListOf(Scalar('a strategy such as "all"', LINE.schema, lambda value: value), 1),
          'Strategies such as `"ring"`, or `["all"]`.', default_words='`["all"]`'),
    Field("repeat", whole(1, 1000), "Chained all-reduces in one step.", 1),
    Field("gpu_indices", ListOf(whole(0)), "The order of the GPUs of every machine in rings.",
          default_words="by number"),
    Field("nodes", LINE, "The nodes of the job in the order of their ranks, as a host list:"
          " `n[0-3,8]`, or numbers.", default_words="all, by number"),
    Field("faithful", FLAG, "Upstream's quirks instead of what a user intends.", default=False),
    Field("topology_overrides", MapOf(ANYTHING, key="KEY"),
          'Keys of the machine\'s file, dotted or nested: `"links.qpi.bandwidth" = "9.6 GB/s"`.'),
    Field("link_factors", MapOf(number(0.0, 1e3), key="LINKS"),
          "Bandwidth of links over that of the machine, by class (`efa_100 = 0.8`, networks"
          ' included), node or name (`"gpu0<>gpu3" = 0.5`); 0 cuts them.',
          default_words="1 for each"),
    Field("fails", LINE, "A part that has failed: the first `node`, `nic`, `leaf`, `spine` or"
          " `core`, one by its place, as `nic 5` (from 0), or one by name, as `spine2`,"
          " `n0.mlx5_0`, `n3`.", NONE),
    Field("nccl", TableOf(SETTINGS), "NCCL's settings.", default_words="none"),
    Field("call_cost", quantity(units.duration, "a time", ("25 us",), (0.0, 1.0, "at most 1 s")),
          "What a framework adds to every call of NCCL, or of a kernel such as `oneshot`: its hook,"
          " Python, the process group.",
          CALL_COST, default_words="`25 us`"),
    Field("framework", choice(tuple(dict.fromkeys((*FRAMEWORKS, *MESH_PROGRAMS))), "framework"),
          "Whose settings to recommend; with `step.mesh`, what it can run: "
          f"{', '.join(MESH_PROGRAMS)}.", default_words="those of each that could run it"),
    Field("worth", Scalar("a part such as `1 %`", {"type": "string", "pattern": "%"}, read_worth),
          "What a change has to save, of the time; with `0 %` any gain counts that is not in"
          " doubt.", WORTH, default_words="`1 %`"),
    Field("step", _LaterTable(STEP, MESH), "What a training step computes, for `simreduce step`."),
    Field("tune", TableOf(TUNED), "What `simreduce tune` looks for."),
    Field("replicas", _LaterTable(replicas.REPLICAS), "Synchronous replicas, instead of `step`."),
)  # fmt: skip
UNUSED = {
    "step": "a scenario has a step or [replicas], not both",
    "strategies": "[replicas] sends gradients to their servers, by no strategy",
    "repeat": "replicas.repetitions says how often",
    "gpu_indices": "replicas.workers says which GPUs, in which order",
    "nodes": "replicas.workers says which GPUs, in which order",
    "tune": "simreduce tune takes no [replicas]",
    "nccl": "[replicas] sends gradients to their servers, not through NCCL",
    "fails": "replicas.dies says when workers stop, link_factors which links are cut",
}
"""Keys of other scenarios, and why `[replicas]` does not take them."""
OF_TOPOLOGIES = ("runtime", "calibration", "topology_overrides", "link_factors")
OPTIONS = {
    "topology": "--topology",
    "workload": "--workload",
    "runtime": "--runtime",
    "calibration": "--calibration",
    "strategies": "--algo",
    "gpu_indices": "--gpu-indices",
    "nodes": "--nodes",
    "worth": "--worth",
    "tune.placement": "--placement",
    "tune.free": "--free",
    "batch": "--batch",
    "framework": "--target",
}
"""The options of commands that replace keys."""
REPLICAS = "[replicas] asks what synchronous replicas do; only `simreduce step` answers that"
MESHES = (
    "step.mesh asks which mesh to train on; simreduce step, tune, report and export answer that"
)
MARKS = (*REQUIRED, "replicas")
"""A file with one of these is a scenario."""
OF_MACHINES = ("nodes", "links", "machine", "extends")
FOR_MACHINES = "try `simreduce bench {0}`, or write a scenario with topology = '{0}'"


@dataclass(frozen=True, slots=True, repr=False)
class MachineQuestion:
    """A question about a machine: of reductions (`Scenario`) or of a model's steps (`Meshes`)."""

    name: str
    title: str
    setup: Setup
    _: KW_ONLY
    framework: str = ""
    worth: float = WORTH
    placement: bool = False
    free: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Self:
        """The same question with another `disturbance`, or whatever else `Setup.but` takes."""
        return replace(self, setup=self.setup.but(**changes))


@dataclass(frozen=True, slots=True, repr=False)
class Scenario(MachineQuestion):
    """Reductions of a workload on a machine. `strategies` is None for all that it accepts.

    The advice is for a `framework`, or for all if that is "". A change has to save `worth` of the
    time. With `placement`, `tune` orders the nodes, and may use others that are `free`.
    """

    workload: Workload
    strategies: tuple[Strategy, ...] | None
    repeat: int = 1
    faithful: bool = False
    step: StepQuestion | None = None

    def __repr__(self) -> str:
        return f"<Scenario {self.name}: {self.workload.name} on {self.setup.machine.name}>"

    def without_step(self) -> Scenario:
        """The same reductions by themselves."""
        return Scenario(**{**_values(self), "step": None})


@dataclass(frozen=True, slots=True, repr=False)
class StepScenario(Scenario):
    """A scenario whose reductions are those of a training step."""

    step: StepQuestion = field(kw_only=True)


def with_step(scenario: Scenario) -> StepScenario:
    """The scenario of a step; ScenarioError if it has none."""
    if scenario.step is None:
        raise ScenarioError(f"{scenario.name}: {NO_STEP}")
    return scenario if isinstance(scenario, StepScenario) else StepScenario(**_values(scenario))


def in_cycles(step: StepQuestion, framework: str) -> StepQuestion:
    """The step in the cycles of a framework: without an end where buffers are settled before."""
    settled = SYSTEMS[framework].settled
    if settled == (step.cycle == FIXED):
        return step
    return replace(step, cycle=FIXED if settled else CYCLE)


def _values(scenario: Scenario) -> dict[str, Any]:
    return {each.name: getattr(scenario, each.name) for each in fields(Scenario)}


@dataclass(frozen=True, slots=True)
class Replicas:
    """A question about synchronous replicas. Without a setup, the table times transfers."""

    name: str
    title: str
    setup: Setup | None
    workload: Workload | None
    faithful: bool
    question: replicas.ReplicasQuestion


@dataclass(frozen=True, slots=True)
class Meshes(MachineQuestion):
    """A question about meshes: a `[step]` with a `mesh`. Only those count that the `framework` can
    run.
    """

    model: Sequences
    question: MeshQuestion

    @property
    def job(self) -> MeshJob:
        """The first job."""
        return self.question.jobs[0]
