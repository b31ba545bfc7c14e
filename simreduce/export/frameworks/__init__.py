"""Frameworks and other systems that take settings, one file each; `FRAMEWORKS` is the registry.

`any` is whatever any framework can be told, for `simreduce tune`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from simreduce.errors import InputError, did_you_mean, near_or_all
from simreduce.export.framework import METHODS, Framework, MeshProgram, no_files
from simreduce.export.frameworks import (
    horovod,
    jax,
    launchers,
    megatron,
    megatron as nemo,
    msccl,
    msccl as mscclpp,
    nccl,
    pytorch,
    serving,
    tensorflow,
    torchtitan,
)
from simreduce.export.frameworks.horovod import thresholds
from simreduce.export.frameworks.pytorch import FSDP1, buckets

_PACKS = (1, 2, 3, 4, 6, 8, 12, 16)

ANY = Framework(
    "any",
    "",
    default=lambda _: "nccl",
    packings=lambda workload: [
        *((f"+packs={count}", 0) for count in _PACKS), *buckets(workload), *thresholds(workload),
    ],
    half=True,
    by_plans=True,
    modes=True,
    methods=tuple(METHODS),
    knobs={
        **FSDP1.knobs,
        "limit_all_gathers": (2, 3, 4, 0),
        "forward_prefetch": (0, 1, 2),
        "streams": (1, 2),
    },
)  # fmt: skip


_EVERY = (
    nccl.NCCL,
    pytorch.PYTORCH,
    horovod.HOROVOD,
    megatron.DEEPSPEED,
    jax.JAX,
    tensorflow.TENSORFLOW,
    tensorflow.TF_CNN_BENCHMARKS,
    serving.VLLM,
    serving.TENSORRT_LLM,
    serving.FLASHINFER,
    ANY,
    msccl.MSCCL,
    mscclpp.MSCCLPP,
    megatron.MEGATRON,
    nemo.NEMO,
    torchtitan.TORCHTITAN,
    launchers.OPEN_MPI,
    launchers.MPICH,
    launchers.SLURM,
    launchers.KUBERNETES,
    launchers.TORCHRUN,
)

FRAMEWORKS: Mapping[str, Framework] = {
    each.name: each for newest in _EVERY for each in (newest, *newest.others)
}
"""By the names that commands take, and those in other versions by these: `torchtitan=0.2`."""

VERSIONS = tuple(each.name for newest in _EVERY for each in newest.others)
"""The names of other versions than the newest."""

USUAL = pytorch.PYTORCH.name
"""The framework that is tuned where nobody names one."""

LAUNCHERS = tuple(each.name for each in _EVERY if each.starts_ranks)
TARGETS = tuple(
    each.name for each in _EVERY if each.files is not no_files and not each.starts_ranks
)
"""What takes the settings of strategies."""

TRAINED = tuple(name for name in TARGETS if FRAMEWORKS[name].trains)
"""Frameworks, and NCCL by itself, whose settings are recommended."""

TUNED = tuple(each.name for each in _EVERY if each.searched)
"""Whose settings `simreduce tune` searches."""

MESH_PROGRAMS: Mapping[str, MeshProgram] = {
    each.name: each.mesh
    for each in sorted(_EVERY, key=lambda each: each.name in TARGETS)
    if each.mesh
}
"""What trains on meshes, first what does nothing else."""

MESH_VERSIONS: Mapping[str, MeshProgram] = {
    name: each.mesh for name, each in FRAMEWORKS.items() if each.mesh
}
"""The same with those of other versions."""


def find_version(name: str, version: str) -> str:
    """The name of a framework in a version, which may have more numbers than those that are known:
    `torchtitan=0.2.2`. InputError with what is known, and the nearest.
    """
    framework = FRAMEWORKS[name]
    for known, each in framework.versions.items():
        if re.fullmatch(rf"{re.escape(known)}(\.[0-9]+)*", version):
            return each.name
    words = f"--for {version}: {framework.title} has files for"
    if not framework.versions:
        raise InputError(f"{words} one version, whichever you name")
    whole = re.fullmatch(r".*=[0-9.]+", version)  # not known, but not misspelt
    near = "" if whole else did_you_mean(version, framework.versions)
    raise InputError(f"{words} {', '.join(framework.versions)}{near}")


def find_framework(
    name: str, known: Collection[str], words: str, error: type[InputError] = InputError
) -> Framework:
    """The framework of a name that is `known`; else the `error` in these words, with the nearest
    name.
    """
    if name not in known:
        raise error(f"{words}{near_or_all(name, known, '; one of ')}")
    return FRAMEWORKS[name]
