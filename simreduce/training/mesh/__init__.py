"""Steps on meshes: tensor, pipeline, context, expert and data parallel ranks.

A job has all that its schedule, its times and its memory follow from. `pipeline` says who takes
turns when, `parts` what each rank computes and exchanges, `passes` how long that takes, `held` what
memory it needs. `write` makes an execution of it all and runs it; `mesh_table` reads what is asked.

The ways of a job's mesh say which ranks work on which part of a model. Ranks lie on a mesh as
Megatron-LM's do (`megatron/core/parallel_state.py`): the first axis of the `order` is the one of
neighbours. Attention and what is plain divide the ranks of a stage into tensor (tp), context (cp)
and data parallel ones (dp). Experts divide the same ranks anew: into tensor parallel ones of an
expert (etp), experts' ranks (ep) and replicas of those (edp).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from simreduce.errors import InputError, near_or_all
from simreduce.files.formats.syntax import Faults
from simreduce.training.eager import MEGATRON
from simreduce.training.gpus import Gpu
from simreduce.training.memory import FUSED, NONE
from simreduce.training.mesh.pipeline import IN_A_V
from simreduce.workload.decoder import Decoder

AXES = TP, CP, EP, DP, PP = ("tp", "cp", "ep", "dp", "pp")
ETP = "etp"
COPIES, SHARDS = "dp_replicate", "dp_shard"
"""torchtitan's words for hybrid shards: copies of what neighbours share, and how many share it."""
ORDER = "-".join(AXES)
"""Megatron-LM's default order: tensor parallel ranks are neighbours, stages are far apart."""
REPLICAS_FAR = "tp-cp-ep-pp-dp"
"""Stages are nearer than replicas: Megatron-LM's `--use-tp-pp-dp-mapping`."""
MOST_WAYS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ways of each axis. `dp` counts all replicas of what is no expert, so that `ep` divides
    `dp` x `cp` x `tp` / `etp`. Of hybrid shards (HSDP) there are `copies`, each on neighbours of
    `dp` and `cp`.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    etp: int = 0
    copies: int = 1
    order: str = ORDER

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tensor(self) -> int:
        """Ranks that share an expert: as many as share all else, unless stated."""
        return self.etp or self.tp

    @property
    def expert_data(self) -> int:
        """Replicas of each expert."""
        return self.tp * self.cp * self.dp // (self.expert_tensor * self.ep)

    @property
    def text(self) -> str:
        """As users write it: `tp=8,pp=4,dp=8`."""
        ways = {TP: self.tp, PP: self.pp, CP: self.cp, EP: self.ep, DP: self.dp}
        shown = [f"{key}={count}" for key, count in ways.items() if count > 1]
        if self.etp and self.etp != self.tp:
            shown.append(f"{ETP}={self.etp}")
        if self.copies > 1:
            shown.append(f"{COPIES}={self.copies}")
        return ",".join(shown) or "dp=1"

    @property
    def name(self) -> str:
        """Its ways, and the order unless that is the usual one."""
        return self.text if self.order == ORDER else f"{self.text} order={self.order}"

    def groups(self, *axes: str, expert: bool = False) -> tuple[tuple[int, ...], ...]:
        """The ranks that differ in these axes only, group by group in the order of their first.

        With `expert`, `dp` are replicas of an expert and `tp` share one.
        """
        return _groups(self._sizes(expert=expert), axes)

    def shards(self, *axes: str, expert: bool = False) -> tuple[tuple[int, ...], ...]:
        """The ranks that share what replicas of these axes have: one group of each copy."""
        ways = self.copies
        return tuple(
            group[len(group) // ways * i : len(group) // ways * (i + 1)]
            for group in self.groups(*axes, expert=expert)
            for i in range(ways)
        )

    def same_shards(self, *axes: str, expert: bool = False) -> tuple[tuple[int, ...], ...]:
        """The ranks that hold the same shard, one of each copy."""
        return tuple(
            group[i :: len(group) // self.copies]
            for group in self.groups(*axes, expert=expert)
            for i in range(len(group) // self.copies)
        )

    def stage_of(self, rank: int) -> int:
        """The place of a rank in its pipeline, from 0."""
        axes = self.order.split("-")
        inner = axes[: axes.index(PP)]
        below = prod(size for axis, size in self._sizes(expert=False) if axis in inner)
        return rank // below % self.pp

    def _sizes(self, *, expert: bool) -> tuple[tuple[str, int], ...]:
        plain = {TP: self.tp, CP: self.cp, EP: 1, DP: self.dp, PP: self.pp}
        anew = {TP: self.expert_tensor, CP: 1, EP: self.ep, DP: self.expert_data, PP: self.pp}
        sizes = anew if expert else plain
        return tuple((axis, sizes[axis]) for axis in self.order.split("-"))


@lru_cache(maxsize=256)
def _groups(
    sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    outer_first = sizes[::-1]
    grid = np.arange(prod(size for _, size in sizes)).reshape([size for _, size in outer_first])
    apart = [i for i, (axis, _) in enumerate(outer_first) if axis not in axes]
    within = [i for i, (axis, _) in enumerate(outer_first) if axis in axes]
    rows = grid.transpose(apart + within).reshape(-1, prod(grid.shape[i] for i in within))
    return tuple(sorted(map(tuple, rows.tolist())))


def read_mesh(text: str, order: str = ORDER) -> Mesh:
    """The mesh of `tp=8,pp=4`, with `dp` 0 if it is not stated. InputError lists every fault."""
    faults, ways = Faults("mesh"), dict[str, int]()
    known = (*AXES, ETP, COPIES, SHARDS)
    for part in text.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if key not in known:
            faults.add("", f"unknown axis {key!r}{near_or_all(key, known)}")
        elif key in ways:
            faults.add("", f"{key} is given twice")
        elif not value.isdecimal() or not 1 <= int(value[:9]) <= MOST_WAYS:
            faults.add("", f"{key} must be a whole number from 1 to {MOST_WAYS}, got {value!r}")
        else:
            ways[key] = int(value)
    copies, shards = ways.pop(COPIES, 1), ways.pop(SHARDS, 0)
    if shards:
        faults.check(
            ways.setdefault(DP, copies * shards) == copies * shards,
            "",
            f"{DP} is {COPIES} x {SHARDS}, {copies * shards}; leave it out",
        )
    faults.raise_any()
    return Mesh(**{DP: 0, **ways}, copies=copies, order=order)


def read_order(text: str) -> str:
    """The order of all axes; ValueError for others."""
    if sorted(text.split("-")) != sorted(AXES):
        raise ValueError(f"must have each of {', '.join(AXES)} once, such as {ORDER}")
    return text


def nearest_divisors(count: int, wanted: int) -> str:
    """The divisors of `count` next to `wanted`, as words."""
    others = [d for d in range(1, count + 1) if count % d == 0 and d != wanted]
    place = bisect(others, wanted)
    return " or ".join(map(str, others[max(place - 1, 0) : place + 1]))


def check_divides(faults: Faults, place: str, ways: int, what: str, count: int) -> None:
    """Note that `ways` do not divide `count` things evenly, with those nearby that do."""
    if count % ways:
        faults.add(
            place,
            f"{ways} ways do not share {count} {what} evenly; {nearest_divisors(count, ways)} do",
        )


def legal_ways(counts: Sequence[int], most: int) -> list[int]:
    """The ways up to `most` that divide all of the counts."""
    return [d for d in range(1, most + 1) if not any(count % d for count in counts)]


def fill(mesh: Mesh, ranks: int) -> Mesh:
    """The mesh with as many replicas as the machine has room for.

    InputError if the others do not divide its ranks, or if a stated `dp` does not.
    """
    each = mesh.tp * mesh.cp * mesh.pp
    if mesh.dp and mesh.ranks == ranks:
        return mesh
    if mesh.dp or ranks % each:
        stated = f"{mesh.text} needs {mesh.ranks} GPUs" if mesh.dp else f"tp x cp x pp is {each}"
        near = nearest_divisors(ranks, each)
        hint = f"; leave dp out: dp={ranks // each}" if mesh.dp and not ranks % each else ""
        raise InputError(
            f"mesh: {stated}, and the machine has {ranks}"
            + (hint or f"; products of {near} divide them")
        )
    return replace(mesh, dp=ranks // each)


REPLICATED, DISTRIBUTED, FSDP = OPTIMIZERS = ("replicated", "distributed", "fsdp")
GRAD_REDUCE, PARAM_GATHER, TP_GRAD, TP_COMM, P2P, EXPERTS = OVERLAPS = (
    "grad_reduce", "param_gather", "tp_grad", "tp", "p2p", "ep",
)  # fmt: skip
USUAL = frozenset((GRAD_REDUCE, PARAM_GATHER, TP_GRAD))
"""What overlaps unless a job says."""
ALLTOALL, DEEPEP = DISPATCHES = ("alltoall", "deepep")
NCCL = "nccl"
ATTENTION, ROUTER = GRAPHS = ("attention", "router")


@dataclass(frozen=True)
class MeshJob:
    """One step of `micros` micro batches of `micro_batch` sequences each on every replica.

    `split` has the blocks of each stage, in the order of the stages. Products have `bits`, all else
    16 of the type `half`. The slowest rank of experts gets `imbalance` times its share of tokens;
    an expert takes `capacity` times its share at most, unless that is 0, and with `pad` always. The
    host launches `graphs` as CUDA graphs. Tensor parallel ranks sum by `tensor_all_reduce`: NCCL,
    or a kernel that reads its peers. With an `interference`, a collective slows down kernels beside
    it by that times its part of the SMs. A schedule of a file has each stage on the rank of
    `placed`. With a `part`, `Gpu.slowest` says of what. Its `kernels` are those of a stack.
    """

    shape: Decoder
    mesh: Mesh
    gpu: Gpu
    micro_batch: int
    micros: int
    sequence: int
    schedule: str
    virtual: int
    split: tuple[int, ...]
    recompute: str = NONE
    attention: str = FUSED
    sequence_parallel: bool = False
    optimizer: str = REPLICATED
    overlap: frozenset[str] = frozenset()
    bits: int = 16
    half: str = "bf16"
    reduced: int = 4
    imbalance: float = 1.0
    interference: float | None = None
    capacity: float = 0.0
    pad: bool = False
    dispatch: str = ALLTOALL
    tensor_all_reduce: str = NCCL
    graphs: frozenset[str] = frozenset()
    placed: tuple[int, ...] = ()
    part: float | None = None
    kernels: str = MEGATRON

    @property
    def spread(self) -> float:
        """The standard deviation of the speeds of its GPUs, as a part."""
        return self.gpu.spread

    @property
    def text(self) -> str:
        """Its name among others of the same model: mesh, micro batch, schedule, choices."""
        said = {
            self.mesh.name: True,
            f"micro_batch={self.micro_batch}": True,
            self.schedule: self.mesh.pp > 1,
            f"virtual={self.virtual}": self.virtual > 1,
            f"recompute={self.recompute}": self.recompute != NONE,
            f"tensor_all_reduce={self.tensor_all_reduce}": self.tensor_all_reduce != NCCL,
            self.optimizer: True,
        }
        return " ".join(words for words, tells in said.items() if tells)

    @property
    def words(self) -> str:
        """How to train with it, in words."""
        staged = f" with {self.virtual} stages on a GPU" if self.virtual > 1 else ""
        said = [
            self.mesh.name,
            f"micro batches of {self.micro_batch}",
            f"{self.schedule}{staged}" * (self.mesh.pp > 1),
            f"{self.recompute} recomputation" * (self.recompute != NONE),
            self.optimizer * (self.optimizer != DISTRIBUTED),
            f"{self.tensor_all_reduce} for tensor parallel sums" * (self.tensor_all_reduce != NCCL),
        ]
        return ", ".join(filter(None, said))

    @property
    def complexity(self) -> tuple[bool, int, bool, bool, bool]:
        """Sorts jobs by what is unusual about them, the simplest first."""
        return (
            self.mesh.order != ORDER,
            self.virtual,
            self.schedule != "1f1b",
            self.recompute != NONE,
            self.optimizer != DISTRIBUTED,
        )

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.micros * self.mesh.dp

    @property
    def tokens(self) -> int:
        """Tokens of a micro batch that a rank of its context parallel group has."""
        return self.micro_batch * self.sequence // self.mesh.cp

    @cached_property
    def home(self) -> tuple[int, ...]:
        """The pipeline rank of each stage: in turn, or in a V, or as a file has them."""
        p, last = self.mesh.pp, len(self.split) - 1
        in_a_v = self.schedule in IN_A_V
        return self.placed or tuple(
            min(stage, last - stage) if in_a_v else stage % p for stage in range(last + 1)
        )

    @property
    def splitting(self) -> str:
        """How blocks are split into stages: `even`, `ends` with one less on the first and the last,
        `last` with fewer there, or `listed`.
        """
        if len({*self.split}) == 1:
            return "even"
        blocks, stages = self.shape.blocks, len(self.split)
        if self.split == split_evenly(blocks, stages):
            return "ends"
        alone = self.virtual == 1 and self.split == split_short(blocks, stages)
        return "last" if alone else "listed"

    def blocks(self, stage: int) -> range:
        """The blocks of a stage."""
        first = sum(self.split[:stage])
        return range(first, first + self.split[stage])


def split_evenly(blocks: int, stages: int) -> tuple[int, ...] | None:
    """The blocks of each stage: all as many, or the first and the last one less.

    The embedding and the output then count as a block each, as with Megatron-LM's
    `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`. None if
    neither works.
    """
    if blocks % stages == 0:
        return (blocks // stages,) * stages
    if (blocks + 2) % stages == 0 and stages > 1:
        each = (blocks + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    return None


def split_short(blocks: int, stages: int) -> tuple[int, ...] | None:
    """The blocks of each stage: all as many, but for fewer on the last; None if it had none."""
    each = -(-blocks // stages)
    last = blocks - each * (stages - 1)
    return (*(each,) * (stages - 1), last) if last > 0 else None
