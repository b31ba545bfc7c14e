"""Published times of training steps on meshes, with their sources and what is assumed of them.

`steps.csv` has a row for each configuration: the newest release of it where several were published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from simreduce.files.published.reading import shipped_rows


@dataclass(frozen=True, slots=True)
class StepSource:
    """Where the steps of a set were published, and what the publication leaves open.

    They ran on machines of eight `gpu`: `machine`, or so many of them as `several` says. `recent`
    ones have fused attention, and all but experts' all-to-alls overlaps with compute; in `plain`
    ones nothing does, and replicas share nothing.
    """

    title: str
    url: str
    gpu: str
    machine: str
    several: str
    assumed: str
    recent: bool = False
    plain: bool = False


_RECENT = (
    "{}, fused attention, no recomputation, optimizer states shared by replicas, gradients of 16"
    " bits; gradients, parameters, tensor parallel sums and sends between stages overlap with"
    " compute."
)
_EXPERTS = (
    " Experts by the recipes in scripts/performance: tokens balanced and none dropped, HybridEP as"
    " DeepEP, CUDA graphs as stated, permutations in one kernel each."
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
        plain=True,
    ),
    "vtrain-multi": StepSource(
        "vTrain (Bang et al. 2024), ground_truth_multi.csv: Megatron-DeepSpeed on 64 and 512 A100",
        "https://github.com/VIA-Research/vTrain/tree/f8dda8473a/data",
        "A100", "dgx-a100", "dgx-a100x{},nics=4",
        "as vtrain-single; 4 ports of 200 Gbit/s a machine, after the repository's configuration.",
        plain=True,
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
}  # fmt: skip
"""By the name of the set."""

_GPT = "transformer:layers={},hidden={},heads={},vocab=51200"
MODELS: Mapping[str, str] = {
    "3.6b": _GPT.format(30, 3072, 32),
    "39.1b": _GPT.format(48, 8192, 64),
    # NVIDIA's NeMo-Framework-Launcher, launcher_scripts/conf/training: gpt3/5b.yaml and
    # llama/llama2_7b.yaml
    "gpt-3-5b": "transformer:layers=24,hidden=4096,heads=32,vocab=50304",
    "llama-2-7b": "transformer:layers=32,hidden=4096,heads=32,vocab=32000,ffn=11008,gated=yes,"
    "seq=4096",
    **{f"{h}x{n}": _GPT.format(n, h, 16) for h in (1024, 2048) for n in (12, 24)},
}
"""Models that are no names, by how reports call them: the width and the blocks, or parameters."""


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A step that took `seconds`; ways of the mesh, and its batches in sequences.

    Tokens go to experts by `dispatch`, beside compute if that is `hidden`. `graphs` are launched as
    CUDA graphs.
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

    @property
    def source(self) -> StepSource:
        """Where it was published."""
        return SOURCES[self.set]

    @property
    def family(self) -> str:
        """What is left out of a fit together: models of equal layers share measurements."""
        return self.model.partition("x")[0] if self.set == "vtrain-single" else self.model

    @property
    def machine(self) -> str:
        """The machine of the step, which may have more GPUs than the step uses."""
        count = self.gpus // 8
        return self.source.several.format(count) if count > 1 else self.source.machine


def _step(row: Mapping[str, str]) -> PublishedStep:
    whole = ("gpus", "tp", "cp", "pp", "virtual", "global_batch", "micro_batch", "sequence", "ep")
    return PublishedStep(
        set=row["set"], model=row["model"], recompute=row["recompute"], precision=row["precision"],
        sequence_parallel=row["sequence_parallel"] == "yes", seconds=float(row["seconds"]),
        dispatch=row["dispatch"], hidden=row["hidden"] == "yes",
        graphs=tuple(filter(None, row["graphs"].split("+"))),
        **{name: int(row[name]) for name in whole},
    )  # fmt: skip


@cache
def published_steps() -> tuple[PublishedStep, ...]:
    """All of them, set by set."""
    return tuple(map(_step, shipped_rows("steps.csv")))
