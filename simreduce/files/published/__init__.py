"""Published timings with their sources: collectives, steps of meshes, kernels and compute.

Tables of collectives lie in `tables/`, one for each publication. Whole tables are held out: no
constant that simreduce ships was fitted to a held table. docs/accuracy.md lists the few things of
the model that were chosen with a view to one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from simreduce import dtypes
from simreduce.errors import InputError, quote
from simreduce.files import parse_toml, read_text
from simreduce.files.formats import (
    FLAG,
    LINE,
    POSITIVE,
    Field,
    FieldValues,
    Format,
    ListOf,
    TablesOf,
    choice,
    text_of,
    whole,
)
from simreduce.files.formats.syntax import Faults, read_csv

LAUNCHERS = ("gpu", "process")
"""One process for each GPU, or one process for all GPUs of a machine."""
RCCL = "RCCL"
"""The library of tables that are compared by themselves."""
ITERATIONS = 20
"""Calls in a row that nccl-tests times by default."""
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_receive",
)
"""Those of nccl-tests. In `send_receive` every rank sends to the next one."""


def _row(text: str) -> tuple[int, float]:
    """`1024 9.4` as bytes and seconds."""
    size, _, time = text.partition(" ")
    if not size.isdecimal() or len(size) > 15 or not time.replace(".", "", 1).isdecimal():
        raise ValueError(f"must be bytes and microseconds, such as 1024 9.4, got {text!r}")
    if not int(size) or not float(time):
        raise ValueError(f"bytes and microseconds must be above 0, got {text!r}")
    return int(size), float(time) * 1e-6


_TABLE = Format(
    "tables",
    "One collective on one machine, over sizes.",
    Field("name", LINE, "Name of the table.", required=True),
    Field("source", LINE, "Where it is published.", required=True),
    Field("topology", LINE, "The machine, as commands take it.", required=True),
    Field("gpus", whole(1), "Use the first GPUs of every machine only.", default_words="all"),
    Field("collective", choice(COLLECTIVES, "collective"), "The collective.", required=True),
    Field("type", text_of(dtypes.code, "a type of element", "float"), "Type of the elements.", 0,
          default_words="`float`"),
    Field("nccl", LINE, "Version of NCCL.", "", default_words="unknown"),
    Field("settings", ListOf(LINE), "Environment variables of NCCL, as `NAME=VALUE`."),
    Field("library", LINE, "What reduced, if not NCCL. RCCL is compared by itself, others are"
          " only shown.", ""),
    Field("launcher", choice(LAUNCHERS, "launcher"), "What each process drives: one `gpu`, or all"
          " of a machine in one `process`.", "gpu"),
    Field("iterations", whole(1), "Calls in a row between two looks at the clock.",
          ITERATIONS),
    Field("held", FLAG, "Keep the table out of every fit.", default=False),
    Field("note", LINE, "What else the source says.", ""),
    Field("times", ListOf(text_of(_row, "bytes and microseconds", "1024 9.4"), 1),
          "Bytes of the whole tensor as nccl-tests counts them, and microseconds, out of place.",
          required=True),
)  # fmt: skip
PUBLISHED = Format(
    "published",
    "Published timings of collectives.",
    Field("title", LINE, "Which machines.", ""),
    Field("tables", TablesOf(_TABLE), "The timings.", required=True),
)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One collective on one machine. `times` are bytes of the whole tensor, and seconds.

    `gpus` counts the GPUs of each machine that take part; None means all. `held` tables take part
    in no fit.
    """

    name: str
    source: str
    topology: str
    gpus: int | None
    collective: str
    dtype: int
    nccl: str
    settings: tuple[str, ...]
    library: str
    launcher: str
    held: bool
    note: str
    times: tuple[tuple[int, float], ...]
    iterations: int = ITERATIONS

    @property
    def compared(self) -> bool:
        """Whether its times are compared with predictions."""
        return self.library in ("", RCCL)

    @property
    def version(self) -> tuple[int, int] | None:
        """NCCL's version, its first two numbers; None if they are not known."""
        major, _, rest = self.nccl.partition(".")
        minor = rest.partition(".")[0]
        known = major.isdecimal() and minor.isdecimal()
        return (int(major), int(minor)) if known else None

    @property
    def site(self) -> str:
        """Who measured: the repository or the title of the source."""
        first = self.source.partition(" ")[0]
        return first if "/" in first else self.source.partition(",")[0]

    @property
    def iterations_timed(self) -> int:
        """Return the iterations until all GPUs are done.

        0 if the time is rank 0's alone, as of old versions of nccl-tests with a process for each
        GPU.
        """
        alone = self.launcher == "gpu" and self.version is not None and self.version < (2, 10)
        return 0 if alone else self.iterations


def read_published(source: str, content: str) -> tuple[PublishedTable, ...]:
    """The tables in the text of a file; raises InputError with every fault."""
    faults = Faults(source)
    tables = PUBLISHED.read(parse_toml(source, content, InputError), faults)["tables"] or []
    for i, name in enumerate(names := [values["name"] for values in tables]):
        if name in names[:i]:
            faults.add(f"tables[{i}].name", f"there is a table {name!r} already")
    faults.raise_any()
    return tuple(_table(values) for values in tables)


def _table(values: FieldValues) -> PublishedTable:
    lists = {key: tuple(values[key] or ()) for key in ("settings", "times")}
    rest = {("dtype" if key == "type" else key): value for key, value in values.items()}
    return PublishedTable(**{**rest, **lists})


def tables_of(file: str) -> tuple[PublishedTable, ...]:
    """The tables in a user's file, or all that are shipped. InputError lists every fault."""
    return read_published(file, read_text(Path(file), InputError)) if file else published_tables()


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Every shipped table, by file and in the order of each."""
    folder = resources.files(__package__) / "tables"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=str)
    return tuple(
        table for file in files for table in read_published(file.name, file.read_text("utf-8"))
    )


def shipped_rows(name: str) -> Iterator[dict[str, str]]:
    """The rows of a shipped CSV."""
    yield from csv.DictReader(text_of_rows("", name).splitlines())


def text_of_rows(file: str, shipped: str) -> str:
    """The text of a user's CSV; without one, of the one that is shipped."""
    if file:
        return read_text(Path(file), InputError)
    return resources.files(__package__).joinpath(shipped).read_text("utf-8")


__all__ = [
    "COLLECTIVES",
    "ITERATIONS",
    "LAUNCHERS",
    "PUBLISHED",
    "RCCL",
    "PublishedTable",
    "published_tables",
    "read_published",
]


STACKS = ("megatron", "torchtitan", "torchtitan-eager", "deepspeed", "maxtext")
"""What may have trained; `training.stacks` has what each computes."""


@dataclass(frozen=True, slots=True)
class StepSource:
    """Where the steps of a set were published, and what the publication leaves open.

    They ran on machines of eight `gpu`: `machine`, or so many of them as `several` says. `recent`
    ones have fused attention, and all but experts' all-to-alls overlaps with compute; in `plain`
    ones nothing does, and replicas share nothing. The kernels are those of a `stack`.
    """

    title: str
    url: str
    gpu: str
    machine: str
    several: str
    assumed: str
    recent: bool = False
    plain: bool = False
    stack: str = "megatron"


_RECENT = (
    "{}, fused attention, no recomputation, optimizer states shared by replicas, gradients of 16"
    " bits; gradients, parameters, tensor parallel sums and sends between stages overlap with"
    " compute."
)
_EXPERTS = (
    " Experts by the recipes in scripts/performance: tokens balanced and none dropped, HybridEP as"
    " DeepEP, CUDA graphs as stated, permutations in one kernel each."
)

_TITAN_URL = (
    "https://github.com/pytorch/torchtitan/blob/31a17bfdb7/benchmarks/"
    "llama3_h100_202412_torchtitan.md"
)
_TITAN = (
    "as DGX H100; fully sharded, fused attention, gradients reduced in 32 bits; selective"
    " recomputation by op. No constant of this GPU is fitted."
)

SOURCES: Mapping[str, StepSource] = {
    "vtrain-single": StepSource(
        "vTrain (Bang et al. 2024), ground_truth_single.csv: Megatron-DeepSpeed on 2 and 8 A100",
        "https://github.com/VIA-Research/vTrain/tree/f8dda8473a/data",
        "A100", "dgx-a100", "dgx-a100x{}",
        "full recomputation, unfused attention, no overlap; every replica has all states of the"
        " optimizer, as the constant part of its times says, which grows with parameters of a GPU."
        " All times of a model are linear in its micro batches to the last digit, and stages of as"
        " many blocks take the same on any mesh: the 480 rows come from about 32 timed layers.",
        plain=True, stack="deepspeed",
    ),
    "vtrain-multi": StepSource(
        "vTrain (Bang et al. 2024), ground_truth_multi.csv: Megatron-DeepSpeed on 64 and 512 A100",
        "https://github.com/VIA-Research/vTrain/tree/f8dda8473a/data",
        "A100", "dgx-a100", "dgx-a100x{},nics=4",
        "as vtrain-single; 4 ports of 200 Gbit/s a machine, after the repository's configuration.",
        plain=True, stack="deepspeed",
    ),
    "table-5": StepSource(
        "Reducing Activation Recomputation in Large Transformer Models (Korthikanti et al. 2022),"
        " table 5",
        "https://arxiv.org/abs/2205.05198",
        "A100", "dgx-a100", "dgx-a100x{}",
        "unfused attention; tensor parallel calls beside gradients overlap, as in Megatron-LM; 530B"
        " without a second replica.",
    ),
    "dgx-cloud": StepSource(
        "NVIDIA DGX Cloud Benchmarking recipes, 24.11.1 to 25.04, H100",
        "https://github.com/NVIDIA/dgxc-benchmarking",
        "H100", "dgx-h100", "dgx-h100x{}",
        _RECENT.format("DGX H100 with 8 ports of 400 Gbit/s"), recent=True,
    ),
    "nemo": StepSource(
        "NVIDIA NeMo 24.07, performance summary of 2024-09-09: pre-training in FP8 on H100",
        "https://github.com/NVIDIA/NeMo/blob/8e3d65dcfe/docs/source/performance/"
        "performance_summary.md",
        "H100", "dgx-h100", "dgx-h100x{}",
        _RECENT.format("as dgx-cloud"), recent=True,
    ),
    "bridge": StepSource(
        "NVIDIA Megatron Bridge, performance summaries 26.02.01 to 26.06, pull request 5094: H100",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df0/docs/"
        "performance-summary-archive.md",
        "H100", "dgx-h100", "dgx-h100x{}",
        _RECENT.format("as dgx-cloud") + _EXPERTS, recent=True,
    ),
    "bridge-b200": StepSource(
        "NVIDIA Megatron Bridge, performance summaries 26.02 and 26.04.01: B200",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df0/docs/"
        "performance-summary-archive.md",
        "B200", "hgx-b200", "hgx-b200x{}",
        _RECENT.format("HGX B200") + _EXPERTS + " MXFP8 as FP8. No constant of B200 is fitted.",
        recent=True,
    ),
    "bridge-gb200": StepSource(
        "NVIDIA Megatron Bridge, performance summary 26.04.01: GB200",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df0/docs/"
        "performance-summary-archive.md",
        "B200", "gb200-nvl72", "gb200-nvl72",
        _RECENT.format("one NVL72") + " MXFP8 as FP8. No constant of B200 is fitted.", recent=True,
    ),
    "torchtitan": StepSource(
        "torchtitan, performance of December 2024: compiled Llama 3.1 on H100 of 96 GB and 500 W",
        _TITAN_URL, "H100-96GB", "dgx-h100", "dgx-h100x{}", _TITAN, stack="torchtitan",
    ),
    "torchtitan-eager": StepSource(
        "the same, eager", _TITAN_URL, "H100-96GB", "dgx-h100", "dgx-h100x{}", _TITAN,
        stack="torchtitan-eager",
    ),
}  # fmt: skip
"""By the name of the set."""

MODELS: Mapping[str, str] = {
    f"{width}x{blocks}": f"transformer:layers={blocks},hidden={width},heads=16,vocab=51200"
    for width in (1024, 2048)
    for blocks in (12, 24)
}
"""Workloads without a name, by how reports call them: the width and the blocks."""


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A step that took `seconds`; ways of the mesh, and its batches in sequences.

    Tokens go to experts by `dispatch`, beside compute if that is `hidden`; without experts, tensor
    parallel sums are (AsyncTP). `graphs` are launched as CUDA graphs. A user's ran on a `topology`
    with a `gpu`, by a `stack`.
    """

    set: str
    model: str
    gpus: int
    tp: int
    cp: int
    pp: int
    virtual: int
    global_batch: int
    micro_batch: int
    sequence: int
    recompute: str
    sequence_parallel: bool
    precision: str
    seconds: float
    ep: int = 1
    dispatch: str = ""
    graphs: tuple[str, ...] = ()
    hidden: bool = False
    topology: str = ""
    gpu: str = ""
    stack: str = ""

    @property
    def source(self) -> StepSource:
        """Where it was published; of a user's step, as what that says."""
        if not self.topology:
            return SOURCES[self.set]
        known = self.set, "", self.gpu, self.topology, self.topology
        return StepSource(*known, "", recent=True, stack=self.stack)

    @property
    def bits(self) -> int:
        """Of the numbers that products take."""
        return 8 if self.precision == "fp8" else 16

    @property
    def family(self) -> str:
        """What is left out of a fit together: models of equal layers share measurements."""
        return self.model.partition("x")[0] if self.set == "vtrain-single" else self.model

    @property
    def machine(self) -> str:
        """The machine of the step, which may have more GPUs than the step uses."""
        if self.topology:
            return self.topology
        count = self.gpus // 8
        return self.source.several.format(count) if count > 1 else self.source.machine


def _step(row: Mapping[str, str]) -> PublishedStep:
    whole = ("gpus", "tp", "cp", "pp", "virtual", "global_batch", "micro_batch", "sequence", "ep")
    return PublishedStep(
        set=row["set"], model=row["model"], recompute=row["recompute"], precision=row["precision"],
        sequence_parallel=row["sequence_parallel"] == "yes", seconds=float(row["seconds"]),
        dispatch=row["dispatch"], hidden=row["hidden"] == "yes",
        graphs=tuple(filter(None, row["graphs"].split("+"))),
        **dict[str, Any]((name, int(row[name])) for name in whole),
    )  # fmt: skip


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,11}", text):
        raise ValueError(f"must be a whole number from 1, got {quote(text)}")
    return int(text)


_COUNT = text_of(_count, "a whole number from 1", "32")
_YES = {"yes": True, "no": False}
STEP_ROW = Format(
    "row",
    "A training step on a mesh that was measured.",
    Field("model", LINE, "The model, as `workload` names it.", required=True),
    Field("topology", LINE, "The machine, as commands take it.", required=True),
    Field("gpu", LINE, "The GPU, if it is not the machine's.", ""),
    Field("stack", choice(STACKS, "stack"), "What trained.", "megatron"),
    Field("gpus", _COUNT, "GPUs of the step.", required=True),
    *(Field(key, _COUNT, f"Ways of {key}.", 1) for key in ("tp", "cp", "pp", "ep")),
    Field("virtual", _COUNT, "Stages of a GPU.", 1),
    Field("global_batch", _COUNT, "Sequences of a step.", required=True),
    Field("micro_batch", _COUNT, "Sequences of a micro batch.", 1),
    Field("sequence", _COUNT, "Tokens of a sequence.", required=True),
    Field("recompute", choice(("none", "selective", "full"), "policy"), "What is made again.",
          "none"),
    Field("sequence_parallel", choice(tuple(_YES), "word"), "Whether ranks share sequences.",
          "yes"),
    Field("precision", choice(("bf16", "fp16", "fp8"), "precision"), "Of products.", "bf16"),
    Field("seconds", POSITIVE, "The step.", required=True),
)  # fmt: skip


def steps_of(file: str) -> Sequence[PublishedStep]:
    """The steps in a user's file, or those that are shipped. InputError lists every fault."""
    if not file:
        return published_steps()
    faults, content = Faults(file), text_of_rows(file, "steps.csv")
    found = list[PublishedStep]()
    for place, row in read_csv(content, STEP_ROW.keys, ",".join(STEP_ROW.keys), faults, InputError):
        before = len(faults.problems)
        values = STEP_ROW.read({key: cell for key, cell in row.items() if cell}, faults, place)
        if len(faults.problems) == before:
            parallel = _YES[str(values["sequence_parallel"])]
            found.append(PublishedStep(file, **{**values, "sequence_parallel": parallel}))
    faults.check(bool(found or faults.problems), "", "has no step")
    faults.raise_any()
    return found


@cache
def published_steps() -> tuple[PublishedStep, ...]:
    """All of them, set by set.

    `steps.csv` has a row for each configuration: the newest release of it where several were
    published.
    """
    return tuple(map(_step, shipped_rows("steps.csv")))


# https://github.com/deepseek-ai/DeepEP
TITLE = "DeepEP, README of 2025-10-14 and 2026-07-14: H800 with 400 Gbit/s a GPU, and B200"
HIDDEN, EXPERTS, ACTIVE = 7168, 256, 8
"""DeepSeek-V3's hidden size, experts, and those of a token; dispatch in 8 bits with 4 bytes for
every 128 elements, combine in 16 bits.
"""
BYTES = {"dispatch": HIDDEN + 4 * HIDDEN // 128, "combine": 2 * HIDDEN}
"""Bytes of a token, by the direction."""


class PublishedDispatch(NamedTuple):
    """A call of `ranks`, each with `tokens`: `seconds`, or else bytes a second over a `link`."""

    kernel: str
    machine: str
    ranks: int
    tokens: int
    direction: str
    seconds: float | None
    rate: float
    link: str


@cache
def published_dispatches() -> tuple[PublishedDispatch, ...]:
    """All of them, dispatch and combine of each kernel.

    Dispatch and combine bring tokens to experts and back. `dispatch.csv` has the newest release of
    each kernel, of those with the most SMs. Bandwidths count a token once for each rank (`nvlink`)
    or machine (`rdma`) that it goes to, its own among them.
    """
    return tuple(
        PublishedDispatch(
            row["kernel"], row["machine"], int(row["ranks"]), int(row["tokens"]), way,
            float(row[f"{way}_us"]) * 1e-6 if row[f"{way}_us"] else None,
            float(row[f"{way}_gbps"] or 0) * 1e9, row["link"],
        )
        for row in shipped_rows("dispatch.csv")
        for way in BYTES
    )  # fmt: skip


class KernelSet(NamedTuple):
    """A publication: what it is, and whether it takes no part in any fit."""

    title: str
    held: bool


KERNEL_SETS = {
    "vllm-24532": KernelSet(
        "github.com/vllm-project/vllm/pull/24532 (2025-09-09): H100", held=False
    ),
    "vllm-37756": KernelSet(
        "github.com/vllm-project/vllm/pull/37756 (2026-03-21): B300, taken for B200; 6 GPUs, by the"
        " sizes that its table of settings gives each number",
        held=False,
    ),
    "vllm-24111": KernelSet(
        "github.com/vllm-project/vllm/pull/24111 (2025-09-02): H100", held=False
    ),
    "vllm-42324": KernelSet(
        "github.com/vllm-project/vllm/pull/42324: SM 9.0, taken for 8 H100, the last of its tables,"
        " and B200",
        held=True,
    ),
    "sglang-22734": KernelSet(
        "github.com/sgl-project/sglang/pull/22734: H200, one node, taken for 8 GPUs", held=True
    ),
}
"""By name; looked up 2026-11."""


class PublishedKernel(NamedTuple):
    """An all-reduce of `nbytes`, which took `seconds` with its `copies` of the whole tensor."""

    set: str
    machine: str
    gpus: int
    nbytes: int
    implementation: str
    strategy: str
    copies: int
    seconds: float

    @property
    def held(self) -> bool:
        """Whether its set takes no part in any fit."""
        return KERNEL_SETS[self.set].held


@cache
def published_kernels() -> tuple[PublishedKernel, ...]:
    """All of them.

    `kernels.csv` has all-reduces by kernels, and by NCCL beside them, all launched by CUDA graphs,
    with the strategy that does the same. vLLM copies tensors to buffers that GPUs share and back
    (`copies`), which its times hold. Times were printed to 1 us but for one set.
    """
    return tuple(
        PublishedKernel(
            row["set"], row["machine"], int(row["gpus"]), int(row["size_bytes"]),
            row["implementation"], row["strategy"], int(row["copies"]),
            float(row["time_us"]) * 1e-6,
        )
        for row in shipped_rows("kernels.csv")
    )  # fmt: skip


COMPUTE_SOURCE = (
    "one H100 SXM and one H200 by themselves, driver 580.159.04, PyTorch 2.11 (CUDA 13.0),"
    " 2026-11-27: python -m simreduce_validate.computing; one V100 of a DGX-1, CUDA 10.1, cuDNN"
    " 7.6.2, 2019-10: https://github.com/baidu-research/DeepBench, results/train"
)
"""Where the shipped times come from."""

PRODUCT, CONVOLVED, ATTENTION, MOVES, EMPTY, HOST, LAYERS = (
    "products of {} bits", "convolutions of {} bits", "fused attention", "kernels that move bytes",
    "empty kernels", "kernels that the host launches", "layers of Llama",
)  # fmt: skip
KINDS = {
    "product": PRODUCT,
    "product_sustained": PRODUCT,
    **{f"convolution_{of}": CONVOLVED for of in ("results", "inputs", "weights")},
    **{
        f"attention{causal}_{way}": ATTENTION
        for causal in ("", "_causal")
        for way in ("forward", "backward")
    },
    **dict.fromkeys(
        (
            "residual", "times", "copy", "dropout", "softmax", "loss", "adamw", "silu",
            "gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "rms_norm",
            "rms_norm_backward",
        ),
        MOVES,
    ),
    "kernel_in_graph": EMPTY,
    "linear_launched": HOST,
    **dict.fromkeys(("layers", "layers_forward", "layers_compiled"), LAYERS),
}  # fmt: skip
"""What is timed, by the group that it belongs to.

The shape of a product is rows x columns x inner; of a convolution of results, or of the gradients
of inputs or weights, images x side x channels x filters x window x stride, all square; of attention
sequences x tokens x heads x width of a head; of layers their number, then tokens, width, heads,
groups of them and inner width.
"""

_SIDES = {PRODUCT: 3, CONVOLVED: 6, ATTENTION: 4, LAYERS: 6}
_BITS = {PRODUCT: (8, 16, 32), CONVOLVED: (16, 32), "adamw": (32,)}
"""Bits of operands that kernels are known of, if not 16 alone."""


class TimedCompute(NamedTuple):
    """A kernel, or several, of a GPU: `seconds` in the median, `low` and `high` at 10 and 90 %."""

    gpu: str
    kind: str
    shape: tuple[int, ...]
    bits: int
    seconds: float
    low: float
    high: float

    @property
    def group(self) -> str:
        """Its group."""
        return KINDS[self.kind].format(self.bits)


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(map(int, text.split("x")))
    if min(shape) < 1:
        raise ValueError
    return shape


def _call_microseconds(text: str) -> float:
    seconds = float(text) * 1e-6
    if not 0.0 < seconds < 1e6:
        raise ValueError
    return seconds


_TIME = text_of(_call_microseconds, "a time in us", "12.5")
COMPUTE_ROW = Format(
    "row",
    "A kernel that was timed.",
    Field("gpu", LINE, "The model of the GPU.", required=True),
    Field("kind", choice(list(KINDS), "kind"), "What was timed.", required=True),
    Field("shape", text_of(_shape, "whole numbers joined by x", "8192x4096"), "Its shape.",
          required=True),
    Field("bits", text_of(int, "whole bits", "16"), "Bits of its operands.", required=True),
    Field("time_us", _TIME, "The median.", required=True),
    Field("low_us", _TIME, "The 10th percentile.", required=True),
    Field("high_us", _TIME, "The 90th percentile.", required=True),
)  # fmt: skip


def timed_compute(file: str = "") -> Sequence[TimedCompute]:
    """The times in a file, or those that are shipped. InputError lists every fault.

    `simreduce_validate.computing` measures them. `compute.csv` has those of one H100 and one H200,
    by CUDA graphs; whole layers by eager PyTorch; and products and convolutions of one V100.
    """
    faults = Faults(file)
    content = text_of_rows(file, "compute.csv")
    lines = read_csv(content, COMPUTE_ROW.keys, ",".join(COMPUTE_ROW.keys), faults, InputError)
    rows = [
        (place, TimedCompute(*COMPUTE_ROW.read(row, faults, place).values()))
        for place, row in lines
    ]
    for place, row in rows:
        sides = row.kind and row.shape and _SIDES.get(KINDS[row.kind])
        if sides and len(row.shape) != sides:
            faults.add(place, f"shape: {row.kind} has {sides} sides, not {len(row.shape)}")
        if row.kind and row.bits is not None:
            bits = _BITS.get(row.kind) or _BITS.get(KINDS[row.kind], (16,))
            words = f"bits: {row.kind} has {' or '.join(map(str, bits))}, not {quote(row.bits)}"
            faults.check(row.bits in bits, place, words)
    faults.raise_any()
    return [row for _, row in rows]


INTERFERENCE_SOURCE = (
    "one H200 by itself, driver 580.159.04, PyTorch (CUDA 13.0), 2026-11-28, beside blocks of 512"
    " threads with 80 KiB of shared memory, each on an SM of its own"
)
"""Where the shipped times come from."""

CONVOLUTION = "convolutions"
_CONVOLUTIONS = tuple(f"conv{side}x{side}" for side in (1, 3, 5, 7))
_BLOCKS = ("wait", "paced20", "copy")
_ENGINES = ("h2d", "d2h")


class SlowedKernel(NamedTuple):
    """A kernel of a GPU that takes `alone` seconds by itself, and `seconds` beside so many blocks
    that move `moved` bytes a second each way; beside copies to or from the host there are none.
    """

    gpu: str
    kind: str
    shape: tuple[int, ...]
    beside: str
    blocks: int
    alone: float
    seconds: float
    moved: float

    @property
    def group(self) -> str:
        """What it is."""
        return CONVOLUTION if self.kind in _CONVOLUTIONS else KINDS[self.kind].format(16)

    @property
    def what(self) -> str:
        """What runs beside it."""
        names = {"wait": "blocks that wait", **dict.fromkeys(_ENGINES, "copy engines")}
        return names.get(self.beside, "blocks that copy")


def _gigabytes(text: str) -> float:
    if text and not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
        raise ValueError(f"must be a rate in GB/s, such as 12.5, got {quote(text)}")
    return float(text or 0.0) * 1e9


def _natural(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError(f"must be a whole number, got {quote(text)}")
    return int(text)


INTERFERENCE_ROW = Format(
    "row",
    "A kernel that was timed beside something.",
    Field("gpu", LINE, "The model of the GPU.", required=True),
    Field("kind", choice([*(kind for kind in KINDS if KINDS[kind] in (PRODUCT, ATTENTION, MOVES)),
          *_CONVOLUTIONS], "kind"), "The kernel.", required=True),
    Field("shape", text_of(_shape, "whole numbers joined by x", "8192x4096"), "Its shape; of"
          " convolutions images x channels x rows x columns.", required=True),
    Field("beside", choice([*_BLOCKS, *_ENGINES], "word"), "What runs beside it: blocks that wait,"
          " or copy 20 GB/s each, or all they can; copies from or to the host.", required=True),
    Field("blocks", text_of(_natural, "a whole number", "8"), "How many blocks, one on an SM.",
          required=True),
    Field("alone_us", _TIME, "The median by itself.", required=True),
    Field("beside_us", _TIME, "The median beside it.", required=True),
    Field("low_us", _TIME, "The least.", required=True),
    Field("high_us", _TIME, "The most.", required=True),
    Field("copied_GBps", text_of(_gigabytes, "a rate in GB/s", "12.5"),
          "What all blocks copied; nothing for copies from and to the host."),
)  # fmt: skip


def slowed_kernels(file: str = "") -> Sequence[SlowedKernel]:
    """The times in a file, or those that are shipped. InputError lists every fault."""
    faults = Faults(file)
    content = text_of_rows(file, "interference.csv")
    keys = INTERFERENCE_ROW.keys
    lines = [
        (place, INTERFERENCE_ROW.read(row, faults, place))
        for place, row in read_csv(content, keys, ",".join(keys), faults, InputError)
    ]
    for place, row in lines:
        kind, shape, beside, blocks = (row[key] for key in ("kind", "shape", "beside", "blocks"))
        sides = 4 if kind in _CONVOLUTIONS else _SIDES.get(KINDS.get(kind or "", ""))
        if shape and sides and len(shape) != sides:
            faults.add(place, f"shape: {kind} has {sides} sides, not {len(shape)}")
        if beside and blocks is not None and (beside in _BLOCKS) != bool(blocks):
            most = "1 or more" if beside in _BLOCKS else "0"
            faults.add(place, f"blocks: must be {most} beside {beside}, got {blocks}")
    faults.raise_any()
    return [
        SlowedKernel(
            row["gpu"], row["kind"], row["shape"], row["beside"], row["blocks"], row["alone_us"],
            row["beside_us"], 2.0 * (row["copied_GBps"] or 0.0),
        )
        for _, row in lines
    ]  # fmt: skip


CONGESTION_SOURCE = "github.com/HLC-Lab/CRAB @ 128fea7e52, data/backup, December 2025"
"""Where the shipped times come from."""

ALL_TO_ALL, ALL_GATHER = "all_to_all", "all_gather"
_VICTIMS = {"a2a_comm_only": ALL_TO_ALL, "agtr_comm_only": ALL_GATHER}
_BESIDE = "Inc-Congested"
INCAST_BYTES = 2 << 20
"""Bytes of each message of the incast."""


class CongestedCall(NamedTuple):
    """A collective of `ranks` of the `nodes` of a system: seconds `alone` and `beside` an incast of
    the others, in the median. `nbytes` are of each pair of an all-to-all, and of all ranks of an
    all-gather.
    """

    system: str
    collective: str
    nodes: int
    ranks: int
    nbytes: int
    alone: float
    beside: float

    @property
    def slowdown(self) -> float:
        """How many times as long it takes beside the incast."""
        return self.beside / self.alone


def _microseconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) or not float(text):
        raise ValueError(f"must be a time in us, such as 12.5, got {quote(text)}")
    return float(text) * 1e-6


CONGESTION_ROW = Format(
    "row",
    "A collective that was timed.",
    Field("system", LINE, "The system.", required=True),
    Field("case", LINE, f"What runs: with {_BESIDE!r} in it, an incast too.", required=True),
    Field("nodes", _COUNT, "Nodes in all.", required=True),
    Field("victim_nodes", _COUNT, "Nodes of the collective.", required=True),
    Field("victim", choice(list(_VICTIMS), "benchmark"), "The benchmark.", required=True),
    Field("msg_size_bytes", _COUNT, "Of all-to-all of each pair, of all-gather in all.",
          required=True),
    Field("median_avg_us", text_of(_microseconds, "a time in us", "12.5"),
          "The median of the ranks' mean time.", required=True),
)  # fmt: skip
_MORE = (
    "ppn", "split", "layout", "samples", "p90_avg_us", "p99_avg_us", "median_max_us", "p99_max_us",
    "run", "source",
)  # fmt: skip
"""Columns that may be there, and are not read."""


def congested_calls(file: str = "") -> Sequence[CongestedCall]:
    """The calls in a file, or those that are shipped, that were timed both ways. InputError lists
    every fault.

    CRAB measures collectives of MPI between hosts, alone and while an incast runs beside them
    (github.com/HLC-Lab/CRAB). Half of the nodes run a collective, one rank each; the others, every
    second node, all send 2 MiB to one of them, over and over (`benchmarks/blink/noise_incast.cpp`).
    All-to-all starts all its sends at once (`a2a_comm_only.cpp`), all-gather is a ring of
    MPI_Sendrecv (`agtr_comm_only.cpp`).
    """
    faults = Faults(file)
    content = text_of_rows(file, "congestion.csv")
    lines = read_csv(
        content, (*CONGESTION_ROW.keys, *_MORE), ",".join(CONGESTION_ROW.keys), faults, InputError
    )
    found: dict[tuple[str, str, int, int, int], dict[bool, float]] = {}
    for place, row in lines:
        values = CONGESTION_ROW.read(
            {key: row[key] for key in CONGESTION_ROW.keys if key in row}, faults, place
        )
        if values.faulty or None in values.values():
            continue
        key = (
            values["system"], _VICTIMS[values["victim"]], values["nodes"], values["victim_nodes"],
            values["msg_size_bytes"],
        )  # fmt: skip
        if not 1 < values["victim_nodes"] < values["nodes"] - 1:
            words = f"must leave 2 or more of the {values['nodes']} nodes to the incast"
            faults.add(place, f"victim_nodes: {words}, and be 2 or more, got {key[3]}")
            continue
        beside = _BESIDE in values["case"]
        if beside in found.setdefault(key, {}):
            with_it = (
                f"with {_BESIDE!r} in its case" if beside else f"without {_BESIDE!r} in its case"
            )
            faults.add(place, f"times a call again {with_it}, which says what runs beside it")
        found[key][beside] = values["median_avg_us"]
    faults.raise_any()
    both = {key: times for key, times in found.items() if len(times) == 2}
    if not both:
        words = f"no call is timed both alone and, with {_BESIDE!r} in its case, beside an incast"
        raise InputError(f"{file}: {words}")
    return [CongestedCall(*key, times[False], times[True]) for key, times in sorted(both.items())]
