"""A system that takes settings, as one value, and what is asked of it: a strategy to export.

`Framework` has all that the package knows of a system. A `MeshProgram` is one that trains on
meshes: what it lacks, and its files.

`Choice` is a strategy to export, for a workload on a machine, with what a training step adds. A
setting in a few words is what its files say that those of the defaults do not. There are also the
sizes of buckets that are worth trying.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from simreduce import dtypes, units
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError, escape, refuse
from simreduce.files.formats import Name
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl import Facts, choose, facts
from simreduce.planners.nccl.constants import COLLECTIVES, Rule
from simreduce.planners.packing import joined_sizes, ready_order
from simreduce.planners.packing.arrangement import Arrangement, Packer
from simreduce.planners.strategy import Strategy, resolve
from simreduce.units import MIB
from simreduce.version import __version__
from simreduce.workload import Workload

if TYPE_CHECKING:
    from simreduce.training.mesh import MeshJob
    from simreduce.training.sharded import Sharding

Shards: TypeAlias = "Sharding"
"""The settings of a sharded method; only type checkers load it, as a bench trains nothing."""

REPLICATED = "ddp"
"""The method in which every GPU has all parameters."""

METHODS = {
    "ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp": "FSDP",
    "hsdp": "hybrid FSDP",
}  # fmt: skip
"""Methods of a step, as their makers write them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting to hand over.

    `rules` choose NCCL's algorithm by size instead of the strategy, if there are any. `cycle` is
    the time between two runs of Horovod's background thread in seconds. A `method` other than
    `ddp` shards by `shards`, in units of at most `unit` elements; a step sums the gradients of
    `accumulate` passes, each of `batch` samples, 0 if that is not known. `hosts` are the names of
    the nodes in the order of ranks, if they have names, and `groups` number the switches that each
    is below.
    """

    setup: Setup
    workload: Workload
    strategy: Strategy
    rules: tuple[Rule, ...] = ()
    cycle: float | None = None
    method: str = REPLICATED
    shards: Shards | None = None
    unit: int = 0
    accumulate: int = 1
    batch: int = 0
    hosts: tuple[Name, ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def resolved(self) -> Strategy:
        """The strategy that one of TensorFlow's rules chooses here, or the strategy itself."""
        return resolve(self.strategy, self.setup.layout)

    @property
    def facts(self) -> Facts:
        """The communicator in NCCL's terms."""
        part = self.setup.part
        gpus = part.ranks if part is not None and part.machines == 1 else ()
        return facts(self.setup.machine, gpus, self.setup.nccl)

    @property
    def title(self) -> str:
        """The first comment of a file, in a line that ends no docstring."""
        ranks = units.plural(self.setup.layout.n, "rank")
        method = "" if self.method == REPLICATED else f"{self.method}, "
        what = f"{method}{self.strategy.text} for {self.workload.name}"
        text = f"simreduce {__version__}: {what} on {self.setup.machine.name}, {ranks}"
        return escape(text.translate({ord('"'): "'", ord("\\"): "/", ord("\n"): " "}))

    @property
    def called(self) -> str:
        """The bytes of the smallest and the largest call of NCCL, in words."""
        sizes = sorted(call.nbytes for call in self.setup.calls_of(self.resolved, self.workload))
        return " to ".join(dict.fromkeys(map(units.format_size, sizes[:1] + sizes[-1:])))

    @property
    def width(self) -> int:
        """Bytes of an element of the first gradient."""
        return dtypes.SIZES[self.workload.gradients[0].dtype]

    def arrange(self, packer: Packer) -> Arrangement | None:
        """Return a packer's arrangement of the gradients; None if it refuses them."""
        try:
            return packer.arrange(self.workload.gradients)
        except StrategyError:
            return None

    def packs_alike(self, packer: Packer) -> bool:
        """Whether another packer makes the same packs as the strategy, in the same order."""
        own, other = self.arrange(self.resolved.packer), self.arrange(packer)
        return own is not None and other is not None and _packs(own) == _packs(other)


def _packs(arrangement: Arrangement) -> tuple[object, int, int | None]:
    """Return the tensors that travel together, in order; tensors that travel alone have none."""
    groups = [frozenset(group) for group in arrangement.groups]
    alone = all(len(group) == 1 for group in groups)
    return set(groups) if alone else groups, arrangement.pieces, arrangement.wire


def not_by_nccl(choice: Choice) -> list[str]:
    """Why NCCL alone does not carry a choice out on its machine; empty if it does."""
    strategy = choice.resolved
    names = [r.algorithm.partition(":") for r in strategy.ranges]
    foreign = ["".join(name) for name in names if name[0] != "nccl"]
    if foreign:
        return [
            f"NCCL has no {' and no '.join(dict.fromkeys(foreign))}; it has ring, tree and NVLS"
        ]
    if strategy.collective not in COLLECTIVES:
        return []
    faults = Faults()
    for _, _, algorithm in names:
        faults.attempt(
            "", choose, choice.facts, strategy.collective, 1 << 20, choice.setup.nccl,
            algorithm=algorithm, protocol=strategy.nccl.protocol,
        )  # fmt: skip
    return faults.problems


def like_nccl(choice: Choice, packings: Sequence[str]) -> list[str]:
    """The choice's algorithms, if NCCL runs them, then NCCL's own, each with these packings."""
    own = "nccl" if not_by_nccl(choice) else choice.resolved.spec
    return [f"{spec}{packing}" for spec in dict.fromkeys((own, "nccl")) for packing in packings]


def holding(reasons: Mapping[str, object]) -> list[str]:
    """The reasons that hold."""
    return [reason for reason, holds in reasons.items() if holds]


def not_gradients(choice: Choice, what: str) -> list[str]:
    """That a target does nothing but all-reduces of gradients, if the choice is something else."""
    collective, method = choice.strategy.collective, choice.method
    return holding(
        {
            f"{what} reduces gradients, and this is {collective}": collective != "all_reduce",
            f"{what} shards nothing, and this is {method}": (
                collective == "all_reduce" and method != REPLICATED
            ),
        }
    )


def not_reducing(choice: Choice) -> list[str]:
    """That a target does nothing but a training step, if the choice is another collective."""
    return not_gradients(replace(choice, method=REPLICATED), "a training step")


_ENTRY = re.compile(r'"(\w+)": (.+?),?(?:  # (.+))?$')
"""An entry of a Python dictionary or of a JSON object, perhaps with what it means in words."""

_FLAG = re.compile(r"--\w+=[^\s\"]+")
_PATH = re.compile(r"\btf\.(?:\w+\.)*")
"""The modules before a name of TensorFlow."""

_ARGUMENT = re.compile(r"\w+=(?=[A-Z]\w*\()|CommunicationOptions(?=\()")
"""The name of an argument that is an object, whose class says as much; a class that says nothing
beside its arguments.
"""

_LONG = re.compile(r"\d+\.\d{7,}(?:e-?\d+)?")
_PLUGIN = re.compile(r"NCCL_TUNER_CONFIG_FILE=\S+")
_LEFT_OUT = (
    "NCCL_TUNER_PLUGIN", "#", '"""', "from ", "import ", "def ", "return ",
    "wrapped.",  # `Framework.in_half` and `Framework.accumulation` have it
    "for ", "if ", "with ", "fully_shard(", "unit.", "order ", "own ", "runs", "held ",
    "*others", "loss()", "last()", "names ", "more[",
)  # fmt: skip
_TABLES = (".csv", ".xml", ".json5")
"""Files that another setting names."""


_NONE = {"HOROVOD_FUSION_THRESHOLD=0": "no fusion", "num_packs=0": "no packing"}
"""Settings that switch something off, in words."""


def changes(files: Mapping[str, str], before: Mapping[str, str]) -> str:
    """The settings of `files` that those `before` lack, as `bucket_cap_mb=100, ...`; "" if none."""
    known = set(_settings(before))
    told = dict.fromkeys(each for each in _settings(files) if each not in known)
    return ", ".join(f"{_NONE[each]} ({each})" if each in _NONE else each for each in told)


def _settings(files: Mapping[str, str]) -> Iterator[str]:
    for name, text in files.items():
        if not name.endswith(_TABLES):
            for line in text.splitlines():
                yield from _words(line.strip())


def _words(line: str) -> Iterator[str]:
    """The settings of a line: flags, an entry, or the line itself, in the words of its comment."""
    if not re.search(r"\w", line) or line.startswith(_LEFT_OUT) or line[-1] in "{[(":
        return
    if flags := _FLAG.findall(line):
        yield from flags
    elif entry := _ENTRY.match(line):
        typed = f"{entry[1]}={_LONG.sub(lambda number: f'{float(number[0]):.6g}', entry[2])}"
        yield f"{entry[3]} ({typed})" if entry[3] else typed
    elif _PLUGIN.match(line):
        yield f"NCCL's example tuner plugin with a table of sizes ({line})"
    elif len(line) > 1:
        call, _, meaning = line.partition("  # ")
        text = _PATH.sub("", call.removeprefix("strategy = "))
        if text != call:  # a call of TensorFlow, which no terminal has room for
            text, meaning = _ARGUMENT.sub("", text).replace("((", "(").replace("()", ""), ""
            text = text.replace("(", " with ").replace(")", "")
        yield re.sub(r" += +", "=", meaning or text)


_RATIO = 2 ** (1 / 4)
"""From one size of buckets to the next that is tried."""

_SMALLEST = 1 << 18
"""Bytes of the smallest buckets that are tried."""


def bucket_sizes(workload: Workload, *, within: bool = False) -> list[int]:
    """Bytes of buckets that are worth trying: four for each doubling, up to all in one.

    Recorded buckets are joined, and none exceeds a size `within` which they should be.
    """
    gradients, whole = workload.gradients, workload.nbytes
    if workload.finest:
        recorded = [gradients[i].nbytes for i in ready_order(gradients)]
        return joined_sizes(recorded, workload.finest, within=within)
    found, size = [], float(min(_SMALLEST, whole))
    while size < whole:
        unit = 1 << max(int(size).bit_length() - 6, 0)  # two digits and a half
        found.append(int(size) // unit * unit)
        size *= _RATIO
    return [*dict.fromkeys(found), -(-whole // MIB) * MIB]


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
        refuse(self.why_not(job))
        return self.files(job)


def unwritten(title: str, job: MeshedJob, *, dispatch: bool = True) -> dict[str, bool]:
    """That settings of CUDA graphs, and of what moves tokens unless `dispatch` is false, are not
    written for a program.
    """
    what = ["cuda_graphs"] * bool(job.graphs) + ["dispatch"] * (
        dispatch and job.dispatch == "deepep"
    )
    return {f"settings of {' and '.join(what)} are not written for {title}": bool(what)}


def no_files(_: Choice) -> Mapping[str, str]:
    """The files of a system that is not told strategies."""
    return {}


@dataclass(frozen=True, slots=True)
class Framework:
    """A system that takes settings; what does not hold for it keeps its default here.

    Commands take its `name`; sentences have its `title`. It says why it has no setting for a choice
    (`refusals`), the strategies near to one that it may have settings for, the `nearest` first, and
    the `files` that set it to one. A program that trains on meshes has its settings in `mesh`. What
    `starts_ranks` takes an order of nodes, whatever strategy runs on them. Where files differ by
    version, they are those of `version`, as `program=version`, and `others` are the same system in
    other versions, each by the name of its version. `asked` has the programs that read its files,
    with version and date: `make ask-programs`.

    Unless it is told, it runs the strategy of `default`, "" if that is not known, which sentences
    call `default_words` or else its defaults. `switches` says by strategy what has small tensors go
    by it; what does not train (`trains`) has no other strategies. Of a framework that was
    `published` (the year of its paper or release), jobs are advised that name no framework.
    `has_typed` says that `StrategySettings` has what to type for it, where upstream makes the same
    plan.

    `tune` tries `packings` besides the default's, each with the bytes of a bucket, where NCCL runs
    the reductions, and those in half precision too if `half` says so. `in_half` says by method, or
    by "" for all others, what to type for that, with `{half}` (bf16) and `{dtype}` (bfloat16); a
    text without them is fp16's. `accumulation` is what to type so that `{}` passes reduce once.
    What does not pack (`packs`) has the packings and shards of the scenario. `by_plans` says that
    whole plans of all algorithms are searched, `modes` that there are tf_cnn_benchmarks' modes with
    variables on servers, `cycles` that a background thread has a cycle, `settled` that buffers are
    settled before a step.

    It has the `methods` of a step, and those that are `named` if the scenario names them. `knobs`
    are the settings of shards by PyTorch's names, with the values that are tried, the defaults
    first; `unit` the elements of a unit by default, 0 for blocks. One in `coarser` sizes of units
    is tried, in eight where units have other rules too.
    """

    name: str
    title: str
    files: Callable[[Choice], Mapping[str, str]] = no_files
    refusals: Callable[[Choice], list[str]] = lambda _: []
    nearest: Callable[[Choice], list[str]] = lambda _: []
    mesh: MeshProgram | None = None
    starts_ranks: bool = False
    version: str = ""
    others: tuple[Framework, ...] = ()
    asked: tuple[str, ...] = ()

    default: Callable[[Choice], str] = lambda _: ""
    default_words: str = ""
    switches: Mapping[str, str] = field(default_factory=dict)
    trains: bool = True
    published: int = 0
    has_typed: bool = False

    packings: Callable[[Workload], list[tuple[str, int]]] | None = None
    half: bool = False
    in_half: Mapping[str, str] = field(default_factory=dict)
    accumulation: str = "gradient accumulation over {} passes"
    packs: bool = True
    by_plans: bool = False
    modes: bool = False
    cycles: bool = False
    settled: bool = False

    methods: tuple[str, ...] = (REPLICATED,)
    named: tuple[str, ...] = ()
    knobs: Mapping[str, Sequence[object]] = field(default_factory=dict)
    unit: int = 0
    coarser: int = 0

    @property
    def versions(self) -> Mapping[str, Framework]:
        """Itself and the others by version, the default first; none where files are for all."""
        own = {self.version: self} if self.version else {}
        return own | {each.name: each for each in self.others}

    @property
    def searched(self) -> bool:
        """Whether `tune` searches its settings."""
        return bool(self.packings or self.by_plans)

    def default_shards(self, given: Shards, workload: Workload) -> Shards:
        """Its own settings of shards, with the dtypes and the optimizer of the given ones; those
        where it has none.
        """
        if not self.packs:
            return given
        width = dtypes.SIZES[workload.gradients[0].dtype]
        return replace(given.plain, units=self.unit * width) if self.unit else given.plain

    @property
    def tried(self) -> tuple[str, ...]:
        """The strategies of which it gets the fastest where nobody names one."""
        return () if self.trains else tuple(self.switches)
