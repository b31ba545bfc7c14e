"""A training job on a mesh: all that its schedule, its times and its memory follow from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from simreduce.training.gpus import INTERFERENCE, Gpu
from simreduce.training.mesh.pipeline import IN_A_V
from simreduce.training.mesh.ways import Mesh
from simreduce.training.recompute import FULL, FUSED, NONE
from simreduce.workload.architectures.decoder import Decoder

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
    or a kernel that reads its peers. A collective slows down kernels beside it by `interference`
    times its part of the SMs. A schedule of a file has each stage on the rank of `placed`.
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
    interference: float = INTERFERENCE
    capacity: float = 0.0
    pad: bool = False
    dispatch: str = ALLTOALL
    tensor_all_reduce: str = NCCL
    graphs: frozenset[str] = frozenset()
    placed: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Its name among others of the same model: mesh, micro batch, schedule, choices."""
        words = [self.mesh.name, f"micro_batch={self.micro_batch}"]
        if self.mesh.pp > 1:
            words.append(self.schedule)
        if self.virtual > 1:
            words.append(f"virtual={self.virtual}")
        if self.recompute != NONE:
            words.append(f"recompute={self.recompute}")
        if self.tensor_all_reduce != NCCL:
            words.append(f"tensor_all_reduce={self.tensor_all_reduce}")
        return " ".join([*words, self.optimizer])

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.micros * self.mesh.dp

    @property
    def tokens(self) -> int:
        """Tokens of a micro batch that a rank of its context parallel group has."""
        return self.micro_batch * self.sequence // self.mesh.cp

    @property
    def full(self) -> bool:
        """Whether whole blocks are computed again."""
        return self.recompute == FULL

    @cached_property
    def home(self) -> tuple[int, ...]:
        """The pipeline rank of each stage: in turn, or in a V, or as a file has them."""
        p, last = self.mesh.pp, len(self.split) - 1
        in_a_v = self.schedule in IN_A_V
        return self.placed or tuple(
            min(stage, last - stage) if in_a_v else stage % p for stage in range(last + 1)
        )

    @property
    def without_recompute(self) -> MeshJob:
        """The same job that keeps everything."""
        return replace(self, recompute=NONE)

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

    def slows(self, channels: int) -> float:
        """By what part of their speed kernels slow down beside a collective of that many."""
        return self.gpu.loses(channels, self.interference)

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
