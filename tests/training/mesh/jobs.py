"""Jobs on meshes, small enough to work out by hand."""

from __future__ import annotations

from math import inf
from typing import Any

from simreduce.training.calls import NOTHING, CallCost
from simreduce.training.gpus import Gpu
from simreduce.training.mesh import Mesh, MeshJob, split_evenly
from simreduce.training.mesh.passes import Costs, MeshPasses, Pass
from simreduce.training.mesh.pipeline import FORWARD, Action
from simreduce.workload.decoder import read_shape

GPU = Gpu("a GPU", 312e12, 624e12, 2e12, 108, host=0.0)
"""Which waits for no host."""
GPT = "transformer:layers=4,hidden=64,heads=8,vocab=512,seq=32"
LLAMA = "transformer:layers=4,hidden=64,heads=8,groups=4,ffn=96,vocab=512,seq=32,gated=yes"
EXPERTS = f"{LLAMA},experts=8,topk=2,expert_ffn=48,shared=1,dense=2"


def job(mesh: Mesh, text: str = GPT, **more: Any) -> MeshJob:
    """Micro batches of 2 sequences; four of them, one stage on a rank, unless stated."""
    shape = read_shape(text)
    facts = {
        "shape": shape, "gpu": GPU, "micro_batch": 2, "micros": 4,
        "sequence": shape.sequence, "schedule": "1f1b", "virtual": 1, "attention": "unfused",
    } | more  # fmt: skip
    stages = mesh.pp * facts["virtual"]
    return MeshJob(mesh=mesh, split=split_evenly(shape.blocks, stages), **facts)


class Free(Costs):
    """What moves takes no time."""

    rates = inf, inf

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(None, mesh)

    def of(self, _call: object, _stage: int) -> CallCost:
        return NOTHING

    def send(self, _nbytes: int, _stage: int, _to: int) -> CallCost:
        return NOTHING


class Equal(MeshPasses):
    """Passes that take as long on each stage, in seconds."""

    forward, backward = 1.0, 2.0

    def of(self, action: Action) -> Pass:
        seconds = sum(
            self.forward if part.kind == FORWARD else self.backward / (1 + (part.kind != "B"))
            for part in action.parts
        )
        return Pass(seconds, {"compute": seconds})
