"""A machine and how plans run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import isfinite
from os import PathLike, fspath
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from simreduce import dtypes, units
from simreduce.engine import (
    CALM,
    NCCL,
    NOMINAL,
    RUNTIMES,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Runtime,
    Simulator,
    runtime_named,
)
from simreduce.engine.calibrate import (
    KERNELS_OF,
    WITHOUT_TABLES,
    generation_of,
    load_calibration,
    nccl_constants,
)
from simreduce.engine.calibrate.intervals import (
    ELSEWHERE,
    GENERATION,
    MACHINE,
    OTHER_NET,
    NcclCall,
    difference_error,
    is_known,
    spread,
)
from simreduce.engine.runtime import NVLS, KernelConstants, NcclConstants
from simreduce.errors import InputError, StrategyError, TopologyError, expect
from simreduce.plan import Plan
from simreduce.planners.algorithms import KERNELS
from simreduce.planners.algorithms.nccl.paths import BY_ENGINE, SYMMETRIC, decided
from simreduce.planners.layouts import OPEN, Layout, layout as layout_of
from simreduce.planners.nccl import (
    DEFAULTS,
    Facts,
    Settings,
    facts,
    is_measured,
    nominal_text,
)
from simreduce.planners.nccl.choice import Decide, NcclPlan, choose, plan as nccl_plan
from simreduce.planners.nccl.communicator import peer_reach
from simreduce.planners.nccl.library import library_of
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.planners.strategy.compiler import check_size, compile_collective, many_ops
from simreduce.topology import Folded, Topology, load_topology
from simreduce.topology.elements import DEFAULT_REACH, OFF
from simreduce.topology.formats import is_graph
from simreduce.topology.loader import machine_of
from simreduce.topology.routing import is_nvlink
from simreduce.workload import Workload
from simreduce.workload.loader import load_workload

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")

Text = str | PathLike[str]
Machine: TypeAlias = "Topology | Folded | nx.Graph[Any] | Text"
Ready = float | npt.NDArray[np.float64]

_OTHER_NETS = ("efa", "slingshot", "tcp")
"""Links of networks that are neither InfiniBand nor RoCE, by the beginning of their names."""
_NODE, _DOMAINS = 8, 1.8
"""GPUs of most nodes; and the factor by which intervals of NVLink domains of more GPUs, joined by
NICs, are wider: 20 racks of GB200 take 1.2 to 2.2 times as long as predicted.
"""
BY_STRATEGY = replace(TENSORFLOW, name="by_strategy")
"""In the place of a runtime: each strategy's own (see `Setup.running`). A plan by itself, which
says no strategy, runs on TensorFlow's.
"""


@dataclass(frozen=True, init=False, repr=False)
class Setup(Simulator):
    """A machine, the runtime that executes plans on it, the model's constants and what goes wrong.

    `part` is the layout that plans are made for if that is not the whole machine's: some of its
    GPUs, or rings in another order. `nccl` holds NCCL's settings. `call_cost` are the seconds that
    a framework adds to every call of NCCL, and of kernels that read their peers. Machine, runtime
    and calibration may be given by name; the runtime may be `BY_STRATEGY`.
    """

    part: Layout | None = None
    nccl: Settings = DEFAULTS
    call_cost: float = 0.0

    def __init__(
        self,
        machine: Machine,
        runtime: Runtime | str = TENSORFLOW,
        calibration: Calibration | Text = NOMINAL,
        disturbance: Disturbance = CALM,
        part: Layout | None = None,
        nccl: Settings = DEFAULTS,
        call_cost: float = 0.0,
    ) -> None:
        found = read_machine(machine)
        if part is not None:
            chosen = expect(part, Layout, "a Layout")
            if foreign := sorted({*chosen.ranks} - {*found.devices, *found.hosts}):
                raise TopologyError(
                    f"part: {foreign[0]!r} is no device of {found.name}; use a part of its layout"
                )
        values = {
            "machine": found,
            "runtime": read_runtime(runtime),
            "calibration": read_calibration(calibration),
            "disturbance": expect(disturbance, Disturbance, "a Disturbance"),
            "part": part,
            "nccl": expect(nccl, Settings, "NCCL's Settings"),
            "call_cost": call_cost,
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

    @cached_property
    def layout(self) -> Layout:
        """The machine as planners see it."""
        found = self.part or layout_of(self.machine)
        if found.decide and not isinstance(found.decide, Decide):
            return found
        # A part of another setup's layout may hold that one's settings of NCCL.
        return replace(found, decide=Decide(self.machine, self.nccl, found.rules))

    @cached_property
    def fitted(self) -> Calibration:
        """The calibration; one that says nothing of NCCL has the constants of the generation."""
        if self.calibration.nccl != NcclConstants():
            return self.calibration
        return replace(self.calibration, nccl=self._generation)

    @cached_property
    def constants(self) -> Calibration:
        """The fitted constants, with the cost of a call in every launch, with the reach that NCCL's
        settings leave to its channels, and without copies out of its buffers by Simple where users
        register theirs (NVIDIA/nccl src/register/coll_reg.cc, 12df1a1, read 2026-11).

        A stream waits for the framework before each call, as it waits for its launch: by NCCL, of
        a kernel that reads its peers, or by copy engines.
        """
        nccl, cost = self.fitted.nccl, self.call_cost
        nccl = replace(nccl, reach=self._reach, buffer=self.nccl.buffer)
        if not (self._zero_copy or cost or nccl != self.fitted.nccl):
            return self.fitted
        kernels, zero_copy = nccl.kernels, ("nvlink", "pci") if self._zero_copy else ()
        kernels = replace(
            kernels,
            launch=kernels.launch + cost,
            engine_launch=kernels.engine_launch + cost,
            engine_multicast_launch=kernels.engine_multicast_launch + cost,
        )
        nccl = replace(nccl, launch=nccl.launch + cost, zero_copy=zero_copy, kernels=kernels)
        return replace(self.fitted, nccl=nccl)

    @cached_property
    def _reach(self) -> str:
        """The farthest path of channels between GPUs of a machine, as in `Node.peer`."""
        ranks = self.layout.ranks if {*self.layout.ranks} <= {*self.machine.devices} else ()
        return peer_reach(facts(self.machine, ranks, self.nccl), self.nccl)

    @cached_property
    def _zero_copy(self) -> bool:
        """Whether blocks write to users' buffers: those of peers within a machine."""
        if not self.nccl.registered:  # the facts of many GPUs take long
            return False
        since = library_of(self._facts).registered_since
        if since is None or library_of(self._facts).version(self.nccl) < since:
            return False
        return self.layout.task_count < self.layout.n and self.slowest_link != "shm"

    @property
    def capability(self) -> int:
        """The compute capability of the machine's GPUs, 80 for 8.0."""
        return self._facts.capability

    @property
    def generation(self) -> str:
        """The name of the calibration of NCCL or RCCL that is for the machine's GPUs."""
        return generation_of(self.capability, self._facts.library)

    def nominal(self, strategies: Iterable[str], calls: Iterable[NcclCall] = ()) -> str:
        """Say which times rest on no measurement, where NCCL's settings, strategies or `calls` as
        NCCL chooses them may lead to any: kernels that read their peers, on other GPUs than their
        costs were fitted on; and what `nominal_text` knows.
        """
        known = [*calls]
        registered = self._zero_copy and (not known or any(map(_is_copied, known)))
        settings = replace(self.nccl, registered=registered)
        texts = [settings.text, *strategies, *dict.fromkeys(map(_text_of, known))]
        found = [name for name in KERNELS if any(name in text for text in texts)]
        return "; ".join(filter(None, [nominal_text(texts), self._borrowed_by(found)]))

    def _borrowed_by(self, kernels: Sequence[str]) -> str:
        """Says whose constants kernels have that were fitted on other GPUs; "" of others."""
        if not kernels:
            return ""
        own, default = self.calibration.nccl != NcclConstants(), KernelConstants()
        capability, name = KERNELS_OF.get(self.generation, (0, "Hopper"))
        fitted = self.fitted.nccl.kernels != default if own else capability == self.capability
        if fitted:
            return ""
        return (
            f"times of {', '.join(kernels)} are nominal: kernels have "
            f"{'Hopper' if own else name}'s constants, as none were fitted for such GPUs"
        )

    @property
    def borrowed(self) -> str:
        """Says whose constants a generation without published tables has; "" of others."""
        facts, own = self._facts, self.calibration.nccl != NcclConstants()
        name = WITHOUT_TABLES.get((facts.library, facts.capability), "")
        if own or not name:
            return ""
        library = facts.library.upper()
        return (
            f"{library}'s times on {name} are nominal: they have the constants of"
            f" {self.generation}, as no clean table of {name} is public"
        )

    def calls_of(self, strategy: Strategy, workload: Workload) -> list[NcclCall]:
        """Calls of NCCL that a strategy makes for a workload, about; none if others move bytes."""
        gradients = workload.gradients
        if not gradients:
            return []
        try:
            found = strategy.packer.arrange(gradients)
        except InputError:
            return []
        width = dtypes.SIZES[gradients[0].dtype if found.wire is None else found.wire]
        sizes = [width * sum(gradients[i].elements for i in group) for group in found.groups]
        calls = (self.call_of(strategy, size // found.pieces) for size in sizes)
        return [call for call in calls if call for _ in range(found.pieces)]

    @property
    def _generation(self) -> NcclConstants:
        return nccl_constants(self._facts.capability, self._facts.library)

    @property
    def _facts(self) -> Facts:
        return facts(self.machine, settings=self.nccl)

    @property
    def communicator(self) -> NcclPlan:
        """NCCL's or RCCL's communicator of all ranks: what it found, and its model of time."""
        return nccl_plan(facts(self.machine, self.layout.ranks, self.nccl), self.nccl)

    def constants_of(self, plan: Plan) -> Calibration:
        """The constants that a plan is simulated with: NCCL's only where it has a use for them."""
        by_nccl = self.runtime.kernels or plan.executor.any()
        return self.constants if by_nccl else self.calibration

    def running(self, strategy: Strategy | None) -> Setup:
        """Return the setup with the strategy's own runtime, if it has `BY_STRATEGY`.

        That is NCCL's where the strategy is `by_nccl`, else TensorFlow's, which also runs what is
        no strategy.
        """
        if self.runtime != BY_STRATEGY:
            return self
        return self._by_runtime[strategy is not None and strategy.by_nccl]

    def undispatched(self, strategy: Strategy) -> bool:
        """Whether times of a strategy lack the dispatch of TensorFlow's ops, which the calibration
        does not know: they are lower bounds.
        """
        dispatches = self.runtime.dispatch and not self.calibration.dispatches
        return dispatches and not strategy.reduced_by_nccl

    @cached_property
    def _by_runtime(self) -> tuple[Setup, Setup]:
        return self.but(runtime=TENSORFLOW), self.but(runtime=NCCL)

    @cached_property
    def slowest_link(self) -> str:
        """The slowest kind of link that NCCL has to use between GPUs, as in `LINK_KINDS`."""
        if self.layout.task_count > 1:
            return "net"
        machine, reach = self._alone, self._reach
        machine = machine if reach == DEFAULT_REACH else machine.limit_peers(reach)
        ranks = machine.devices if isinstance(self.machine, Folded) else self.layout.ranks
        if machine.nodes[ranks[0]].peer != OFF and any(map(is_nvlink, machine.links)):
            return "nvlink"
        peers = (machine.router.is_peer(ranks[0], other) for other in ranks[1:])
        return "pci" if any(peers) else "shm"

    @cached_property
    def link_class(self) -> str:
        """The slowest link, where errors of networks with software of their own are kept apart."""
        if self.slowest_link != "net":
            return self.slowest_link
        other = any(link.link_class.startswith(_OTHER_NETS) for link in self._alone.links)
        return OTHER_NET if other else "net"

    @cached_property
    def node_kind(self) -> str:
        """How many GPUs a node has, of which compute capability, and what joins them: `8 x 7.0`.

        Where times of one such node were published, others of the kind are no farther off.
        """
        node = self._facts.boxes[0]
        switch = " on a switch" if node.switched else ""
        return f"{len(node.gpus)} x {self._facts.capability / 10}{switch}"

    @property
    def split(self) -> str:
        """Says that NCCL joins GPUs of one machine by its NICs, which is not simulated; "" if it
        does not.
        """
        if self.communicator.facts.nodes <= self.layout.task_count:
            return ""
        return (
            "NCCL joins GPUs of one node by its NICs, and these times are of the way through its"
            " hosts: no published time says how far off they are"
        )

    @cached_property
    def fitted_on(self) -> str:
        """The other machine that the calibration's constants of NCCL were fitted on, with its
        digest; "" if that is this machine, or is not known.
        """
        found = self.calibration.provenance.get("machine", "")
        # Slowed links and folding change the digest of a name; a file has several names.
        name, _, digest = found.partition(" (")
        own = name == self.machine.name or digest.rstrip(")") == self.machine.digest
        return "" if own else found

    def interval(
        self,
        nbytes: int,
        seconds: float,
        collective: str = "all_reduce",
        without: frozenset[str] = frozenset(),
        algorithm: str = "",
        protocol: str = "",
    ) -> tuple[float, float] | None:
        """Return the ends of the 80 % interval of a prediction of one NCCL collective, in seconds.

        They come from the errors of published times, except those of the machines, sites and
        generations `without`. None if nothing is known: for constants that are neither simreduce's
        own nor fitted to logs, for registered buffers, and for an algorithm, the given one or
        NCCL's own choice, whose times were published nowhere. Those that were fitted on other nodes
        are taken for the ones of an unknown machine.
        """
        if self.nccl.collnet and self.layout.task_count > 1 and collective == "all_reduce":
            return None  # of CollNet nothing is known
        if self.split:
            return None
        nccl, library = self.fitted.nccl, self._facts.library
        known = is_known(self.node_kind, self.link_class, without, library)
        other = self.fitted_on.partition(" (")[0]
        known &= not other or machine_of(other) == machine_of(self.machine.name)
        file, misfit = GENERATION if known else ELSEWHERE, None
        taken = self.call(nbytes, collective, algorithm, protocol)
        if not is_measured(taken.algorithm) or (self._zero_copy and _is_copied(taken)):
            return None
        if not other and self.layout.n in nccl.measured.get(collective, ()):
            file, misfit = MACHINE, nccl.misfit
        elif not (nccl.measured or nccl == self._generation):
            return None
        low, high = spread(collective, self.link_class, nbytes, without, file, misfit, library)
        if taken.algorithm == "nvlstree" and max(map(len, self.layout.tasks)) > _NODE:
            low, high = low / _DOMAINS, high * _DOMAINS
        return low * seconds, high * seconds

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - few setups, each with many sizes
    def call(
        self, nbytes: int, collective: str = "all_reduce", algorithm: str = "", protocol: str = ""
    ) -> NcclCall:
        """A call as NCCL chooses it, with the seconds that its model of channels estimates; 0 of
        one GPU.

        Before 2.5 NCCL has no such model, and that of today estimates. Nothing estimates what is
        named and NCCL would never choose.
        """
        known = facts(self.machine, self.layout.ranks, self.nccl)
        by = partial(choose, known, collective, nbytes, algorithm=algorithm, protocol=protocol)
        try:
            found = by(self.nccl)
        except StrategyError:
            if not (algorithm or protocol):
                raise
            return NcclCall(collective, algorithm, protocol, nbytes, 0.0)
        if not isfinite(seconds := found.seconds):
            seconds = by(replace(self.nccl, version=None)).seconds if known.n > 1 else 0.0
        how = found.algorithm, found.protocol
        if self.nccl.symmetric and known.n > 1 and not (algorithm or protocol):
            taken = decided(self.layout, range(known.n), collective, nbytes, OPEN)
            if taken.algorithm in (SYMMETRIC, BY_ENGINE):
                how = taken.algorithm, taken.protocol
        return NcclCall(collective, *how, nbytes, seconds)

    def call_of(self, strategy: Strategy, nbytes: int) -> NcclCall | None:
        """A call of NCCL by a strategy; None if others move its bytes."""
        collective = strategy.collective
        if strategy.reduced_by_nccl:
            return self.call(nbytes, collective, strategy.algorithm, strategy.nccl.protocol)
        base, _, name = strategy.spec.partition(":")
        algorithm = BY_ENGINE if name == BY_ENGINE else SYMMETRIC
        return NcclCall(collective, algorithm, name, nbytes, 0.0) if base == SYMMETRIC else None

    def difference_error(self, one: Sequence[NcclCall], other: Sequence[NcclCall]) -> float | None:
        """Seconds within which the difference of two predictions is with 80 %, by the calls that
        each hangs on; None if nothing is known of errors.
        """
        ends = {
            c[:4]: self.interval(
                c.nbytes, 1.0, c.collective, algorithm=c.algorithm, protocol=c.protocol
            )
            for c in (*one, *other)
        }
        factors = {key: (end[1] / end[0]) ** 0.5 for key, end in ends.items() if end}
        if len(factors) < len(ends):
            return None
        sides = ([c._replace(factor=factors[c[:4]]) for c in side] for side in (one, other))
        return difference_error(*sides)

    @property
    def equal_paths(self) -> str:
        """Which of equal paths transfers take, and what held flows do to others, in words; "" where
        there is one path and they do nothing.
        """
        return self._alone.router.choice

    def but(
        self,
        *,
        machine: Topology | Folded | Text | None = None,
        runtime: Runtime | str | None = None,
        calibration: Calibration | Text | None = None,
        disturbance: Disturbance | None = None,
        part: Layout | EllipsisType | None = ...,
        nccl: Settings | None = None,
        call_cost: float | None = None,
    ) -> Setup:
        """The same setup with other values.

        With `part=None`, or another machine and no `part`, plans use all of the machine.
        """
        return Setup(
            self.machine if machine is None else machine,
            self.runtime if runtime is None else runtime,
            self.calibration if calibration is None else calibration,
            self.disturbance if disturbance is None else disturbance,
            (self.part if machine is None else None) if part is ... else part,
            self.nccl if nccl is None else nccl,
            self.call_cost if call_cost is None else call_cost,
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
        check_size(strategy, workload, self.layout, partial(_build, faithful=faithful))

    def many_ops(self, strategy: Strategy, workload: Workload) -> int:
        """About how many ops the plan of all ranks, unfolded, has; 0 if it takes a few seconds."""
        return many_ops(strategy, workload, self.layout, partial(_build, faithful=False))

    def __reduce__(self) -> tuple[Any, ...]:
        # A runtime's functions need not be importable: a known one goes by its name.
        known = RUNTIMES.get(self.runtime.name) == self.runtime
        runtime = self.runtime.name if known else self.runtime
        rest = self.calibration, self.disturbance, self.part, self.nccl, self.call_cost
        return Setup, (self.machine, runtime, *rest)


def _text_of(call: NcclCall) -> str:
    """A call as a strategy says it, after its collective where that is no all-reduce."""
    if call.algorithm == BY_ENGINE:
        return f"{SYMMETRIC}:{BY_ENGINE}"
    if call.algorithm == SYMMETRIC:
        return f"{call.collective} {SYMMETRIC}".removeprefix("all_reduce ")
    return f"nccl:{call.algorithm}"


def _is_copied(call: NcclCall) -> bool:
    """Whether blocks copy data out of NCCL's buffers unless users register theirs: by Simple, but
    for kernels that have switches sum.
    """
    return call.protocol == "simple" and call.algorithm != NVLS


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


def _build(one: Strategy, some: Workload, few: Layout, *, faithful: bool) -> Plan:
    return compile_collective(one.collective, one, some, few, faithful=faithful)
