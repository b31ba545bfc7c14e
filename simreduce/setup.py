"""A machine and how plans run on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from os import PathLike, fspath
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from simreduce import units
from simreduce.calibrate import load_calibration, nccl_constants
from simreduce.calibrate.sure import GENERATION, MACHINE, OTHER_NET, spread
from simreduce.engine import (
    CALM,
    NCCL,
    NOMINAL,
    RUNTIMES,
    TENSORFLOW,
    AtLeast,
    Calibration,
    Disturbance,
    Rates,
    Recording,
    Resources,
    Result,
    Runtime,
    Summary,
    find_floor,
    find_rates,
    find_seconds,
    record,
    runtime_named,
    simulate_within,
    summarise_within,
)
from simreduce.engine.calibration import NcclConstants
from simreduce.errors import TopologyError, quote
from simreduce.layouts import Layout, layout as layout_of
from simreduce.nccl import DEFAULTS, Settings, facts
from simreduce.nccl.decide import Decide
from simreduce.plan import Plan
from simreduce.strategy import Strategy, compile_collective, parse_strategy
from simreduce.strategy.size import Compile, check_size, takes_long
from simreduce.topology import Folded, Topology, load_topology
from simreduce.topology.from_networkx import is_graph
from simreduce.workload import Workload, load_workload

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")
Text = str | PathLike[str]
Machine: TypeAlias = "Topology | Folded | nx.Graph[Any] | Text"
Ready = float | npt.NDArray[np.float64]

_OTHER_NETS = ("efa", "slingshot", "tcp")
"""Networks that are neither InfiniBand nor RoCE, by the beginning of their names."""
BY_STRATEGY = replace(TENSORFLOW, name="by_strategy")
"""In the place of a runtime: each strategy's own (see `Setup.running`). A plan by itself, which
says no strategy, runs on TensorFlow's.
"""


@dataclass(frozen=True, init=False, repr=False)
class Setup:
    """A machine, the runtime that executes plans on it, the model's constants and what goes wrong.

    `part` is the layout that plans are made for if that is not the whole machine's: some of its
    GPUs, or rings in another order. `nccl` holds NCCL's settings. Machine, runtime and calibration
    may be given by name; the runtime may be `BY_STRATEGY`.
    """

    machine: Topology | Folded
    runtime: Runtime
    calibration: Calibration
    disturbance: Disturbance
    part: Layout | None
    nccl: Settings

    def __init__(
        self,
        machine: Machine,
        runtime: Runtime | str = TENSORFLOW,
        calibration: Calibration | Text = NOMINAL,
        disturbance: Disturbance = CALM,
        part: Layout | None = None,
        nccl: Settings = DEFAULTS,
    ) -> None:
        found = read_machine(machine)
        if part is not None:
            chosen = expect(part, Layout, "a Layout")
            if foreign := sorted({*chosen.ranks} - {*found.devices, *found.hosts}):
                words = f"is no device of {found.name}; use a part of its layout"
                raise TopologyError(f"part: {foreign[0]!r} {words}")
        values = {
            "machine": found,
            "runtime": read_runtime(runtime),
            "calibration": read_calibration(calibration),
            "disturbance": expect(disturbance, Disturbance, "a Disturbance"),
            "part": part,
            "nccl": expect(nccl, Settings, "NCCL's Settings"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        names = self.machine.name, self.runtime.name, self.calibration.name, self.disturbance.text
        part = f"{units.plural(len(self.part), 'GPU')} of " if self.part else ""
        return f"<Setup: {part}{', '.join(filter(None, names))}>"

    def __hash__(self) -> int:
        # Calibrations have dictionaries: names, and what a digest covers, tell most setups apart.
        return hash((self.machine.digest, self.runtime.name, self.calibration.name))

    @property
    def topology(self) -> Topology:
        """The machine with all that is in it. TopologyError if equal machines are folded."""
        if isinstance(self.machine, Folded):
            raise TopologyError(f"{self.machine.name}: its equal machines are folded into one")
        return self.machine

    @cached_property
    def layout(self) -> Layout:
        """What planners see of the machine."""
        found = self.part or layout_of(self.machine)
        if found.decide and not isinstance(found.decide, Decide):
            return found
        # A part of another setup's layout may hold that one's settings of NCCL.
        return replace(found, decide=Decide(self.machine, self.nccl))

    @cached_property
    def constants(self) -> Calibration:
        """The calibration; one that says nothing of NCCL has the constants of the generation."""
        if self.calibration.nccl != NcclConstants():
            return self.calibration
        return replace(self.calibration, nccl=self._generation)

    @property
    def _generation(self) -> NcclConstants:
        return nccl_constants(facts(self.machine, settings=self.nccl).capability)

    def constants_of(self, plan: Plan) -> Calibration:
        """The constants that a plan is simulated with: NCCL's only where it has a use for them."""
        by_nccl = self.runtime.kernels or plan.executor.any()
        return self.constants if by_nccl else self.calibration

    def running(self, strategy: Strategy | None) -> Setup:
        """The setup with the strategy's own runtime, if it has `BY_STRATEGY`: NCCL's where the
        strategy is `by_nccl`, else TensorFlow's, which also runs what is no strategy.
        """
        if self.runtime != BY_STRATEGY:
            return self
        return self._by_runtime[strategy is not None and strategy.by_nccl]

    @cached_property
    def _by_runtime(self) -> tuple[Setup, Setup]:
        return self.but(runtime=TENSORFLOW), self.but(runtime=NCCL)

    @cached_property
    def slowest_link(self) -> str:
        """The slowest kind of link that NCCL has to use between GPUs, as in `LINK_KINDS`."""
        ranks = self.layout.ranks
        if isinstance(self.machine, Folded) or len(self.layout.tasks) > 1:
            return "net"
        if any(link.link_class.startswith("nvlink") for link in self.machine.links):
            return "nvlink"
        peers = (self.machine.router.is_peer(ranks[0], other) for other in ranks[1:])
        return "pci" if any(peers) else "shm"

    @cached_property
    def link_class(self) -> str:
        """The slowest link, where errors of networks with software of their own are kept apart."""
        if self.slowest_link != "net":
            return self.slowest_link
        machine = self.machine.pair if isinstance(self.machine, Folded) else self.machine
        other = any(node.network.startswith(_OTHER_NETS) for node in machine.nodes.values())
        return OTHER_NET if other else "net"

    def interval(
        self, nbytes: int, seconds: float, collective: str = "all_reduce", without: str = ""
    ) -> tuple[float, float] | None:
        """The ends of the 80 % interval of a prediction of one NCCL collective in seconds, by the
        errors of published times but for those of the machine `without`. None if nothing is known:
        for constants that are neither simreduce's own nor fitted to logs.
        """
        nccl, file = self.constants.nccl, GENERATION
        if self.layout.n in nccl.measured.get(collective, ()):
            file = MACHINE
        elif not (nccl.measured or nccl == self._generation):
            return None
        low, high = spread(collective, self.link_class, nbytes, without, file)
        return low * seconds, high * seconds

    def but(
        self,
        *,
        machine: Topology | Folded | Text | None = None,
        runtime: Runtime | str | None = None,
        calibration: Calibration | Text | None = None,
        disturbance: Disturbance | None = None,
        part: Layout | EllipsisType | None = ...,
        nccl: Settings | None = None,
    ) -> Setup:
        """The same setup with other values. With `part=None`, or another machine and no `part`,
        plans use all of the machine.
        """
        return Setup(
            self.machine if machine is None else machine,
            self.runtime if runtime is None else runtime,
            self.calibration if calibration is None else calibration,
            self.disturbance if disturbance is None else disturbance,
            (self.part if machine is None else None) if part is ... else part,
            self.nccl if nccl is None else nccl,
        )

    def compile(
        self,
        strategy: Strategy | str,
        workload: Workload | Text,
        collective: str = "all_reduce",
        *,
        root: int = 0,
        faithful: bool = False,
    ) -> Plan:
        """The plan of a strategy for this machine; a `Strategy` has its own collective.

        StrategyError if the machine does not accept it, PlanTooLarge if memory does not.
        """
        chosen, tensors = read_strategy(strategy, collective), read_workload(workload)
        if self.layout.machines == 1:
            self.check_size(chosen, tensors, faithful=faithful)
        return compile_collective(
            chosen.collective, chosen, tensors, self.layout, root=root, faithful=faithful
        )

    def check_size(self, strategy: Strategy, workload: Workload, *, faithful: bool = False) -> None:
        """PlanTooLarge if the plan of all ranks, unfolded, would surely not fit into memory."""
        check_size(strategy, workload, self.layout, _build(faithful=faithful))

    def takes_long(self, strategy: Strategy, workload: Workload) -> bool:
        """Whether the plan of all ranks, unfolded, would take several seconds."""
        return takes_long(strategy, workload, self.layout, _build(faithful=False))

    @cached_property
    def _resources(self) -> Resources:
        return Resources.of(self.machine, self.calibration, self.disturbance)

    def simulate(self, plan: Plan, ready: Ready = 0.0) -> Result:
        """The prediction for a plan whose inputs exist from `ready` on, in seconds."""
        expect(plan, Plan, "a Plan, as compile makes it")
        result = self._simulate(plan, ready, inf)
        assert isinstance(result, Result)  # noqa: S101 - without a limit there is no other
        return result

    def simulate_within(self, plan: Plan, limit: float) -> Result | AtLeast:
        """The prediction, if it is at most `limit` seconds; else what the plan takes at least."""
        return self._simulate(plan, 0.0, limit)

    def _simulate(self, plan: Plan, ready: Ready, limit: float) -> Result | AtLeast:
        return simulate_within(
            plan, self.machine, self.runtime, self.constants_of(plan), ready, self.disturbance,
            limit, self._resources,
        )  # fmt: skip

    def summarise(self, plan: Plan) -> Summary:
        """As `simulate`, without the critical path: what a ranking needs, in less time."""
        summary = self.summarise_within(plan, inf)
        assert isinstance(summary, Summary)  # noqa: S101 - without a limit there is no other
        return summary

    def summarise_within(self, plan: Plan, limit: float) -> Summary | AtLeast:
        """As `simulate_within`, without the critical path."""
        return summarise_within(
            plan, self.machine, self.runtime, self.constants_of(plan), self.disturbance, limit,
            self._resources,
        )  # fmt: skip

    def find_seconds(self, plan: Plan) -> float:
        """The seconds of `simulate`, in less time."""
        return find_seconds(
            plan, self.machine, self.runtime, self.constants_of(plan), self.disturbance,
            self._resources,
        )  # fmt: skip

    def find_floor(self, plan: Plan, *, in_chunks: bool = False) -> AtLeast:
        """What the plan takes at least, which is not simulated; with `in_chunks`, what it takes in
        chunks of any size.
        """
        return find_floor(
            plan, self.machine, self.runtime, self.constants_of(plan), self.disturbance,
            self._resources, in_chunks=in_chunks,
        )  # fmt: skip

    def find_rates(self, plan: Plan) -> Rates:
        """The floors of a plan apart for its latencies and for its bytes."""
        return find_rates(
            plan, self.machine, self.runtime, self.constants_of(plan), self.disturbance,
            self._resources,
        )  # fmt: skip

    def record(self, plan: Plan, ready: Ready = 0.0) -> Recording:
        """The prediction with the rate of every flow over time."""
        expect(plan, Plan, "a Plan, as compile makes it")
        return record(
            plan, self.topology, self.runtime, self.constants_of(plan), ready, self.disturbance,
            self._resources,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        # A runtime's functions need not be importable: a known one goes by its name.
        known = RUNTIMES.get(self.runtime.name) == self.runtime
        runtime = self.runtime.name if known else self.runtime
        rest = self.calibration, self.disturbance, self.part, self.nccl
        return Setup, (self.machine, runtime, *rest)


def read_machine(machine: Machine) -> Topology | Folded:
    """The machine itself, or that of a networkx graph, of that name or in that file."""
    if is_graph(machine):
        return Topology.from_networkx(machine)
    return _read(machine, (Topology, Folded), load_topology, "a Topology or the name of one")


def read_runtime(runtime: Runtime | str) -> Runtime:
    """The runtime itself, or the one of that name."""
    if runtime == BY_STRATEGY.name:
        return BY_STRATEGY
    return _read(runtime, (Runtime,), runtime_named, f"a Runtime or one of {', '.join(RUNTIMES)}")


def read_calibration(calibration: Calibration | Text) -> Calibration:
    """The calibration itself, or the one of that name or in that file."""
    return _read(calibration, (Calibration,), load_calibration, "a Calibration or the name of one")


def read_workload(workload: Workload | Text) -> Workload:
    """The workload itself, or the one of that name or in that file."""
    return _read(workload, (Workload,), load_workload, "a Workload or the name of one")


def read_text(text: Text, meant: str) -> str:
    """The text, or the path as text."""
    return str(fspath(expect(text, (str, PathLike), meant)))


def read_strategy(strategy: Strategy | str, collective: str = "all_reduce") -> Strategy:
    """The strategy itself, or the one that the text says."""
    return _read(
        strategy, (Strategy,), lambda text: parse_strategy(text, collective), "a strategy's text"
    )


def _read(value: Any, kinds: tuple[type, ...], load: Callable[[str], T], meant: str) -> T:
    """`value` if it is of these kinds, or what `load` makes of text. TypeError for all else."""
    if isinstance(value, (str, PathLike)):
        return load(str(fspath(value)))
    return expect(value, kinds, meant)


def expect(value: Any, kinds: type[T] | tuple[type, ...], meant: str) -> T:
    """`value`; TypeError that says what was meant unless it is of these kinds."""
    if isinstance(value, kinds):
        return value  # type: ignore[return-value]
    raise TypeError(f"expected {meant}, got {type(value).__name__} {quote(value)}")


def _build(*, faithful: bool) -> Compile:
    def build(one: Strategy, some: Workload, few: Layout) -> Plan:
        return compile_collective(one.collective, one, some, few, faithful=faithful)

    return build
