"""A mesh of replicas alone, and the step of DDP: two questions about one job, and one answer."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.study.scenario import with_step
from simreduce.study.scenario_files import load_meshes, load_scenario
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.steps import rank_steps
from simreduce.training import Profile, StepJob
from simreduce.training.calls import CallCost, Method, Reduction
from simreduce.training.executions import COLLECTIVE
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.held import update_seconds
from simreduce.training.mesh.parts import ALL_REDUCE, MeshCall
from simreduce.training.mesh.passes import REPLICAS, Costs, MeshPasses, kernels_profile
from simreduce.training.mesh.pipeline import BACKWARD, FORWARD, Action
from simreduce.training.mesh.write import simulate_mesh
from simreduce.training.passes import loses_of
from simreduce.training.simulation import compose_step
from simreduce.workload import Gradient, Layer, Model
from tests.thorough import examples
from tests.training.mesh.jobs import GPU, job

SETUP = Setup("dgx-a100", "nccl")


@cache
def _costs() -> Costs:
    return Costs(SETUP, Mesh(dp=8))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([512, 1024, 2048]),
    st.sampled_from([4096, 50_000]),
    st.integers(1, 8),
    st.sampled_from([0.0, 2.0, 5.0]),
)
def test_a_mesh_of_replicas_is_the_step_of_ddp_to_the_bit(layers, hidden, words, batch, law):
    """With Megatron-LM's buckets, and with the mesh's seconds of compute given."""
    text = f"transformer:layers={layers},hidden={hidden},heads=8,vocab={words},seq=128"
    facts = {"micros": 1, "micro_batch": batch, "interference": law}
    asked = job(Mesh(dp=8), text, overlap=frozenset({"grad_reduce"}), **facts)
    costs, passes = _costs(), MeshPasses(asked, _costs())
    mesh = simulate_mesh(asked, costs, closely=True)
    buckets = [e.node.nbytes for e in mesh.ran if e.node.kind == COLLECTIVE and e.rank == 0]

    # A layer for each part of the mesh, whose gradients the sizes of its buckets say.
    backward = [each.seconds for each in passes.layers(0, BACKWARD)][::-1]
    forward = [passes.of(Action(0, FORWARD, 0)).seconds, *(0.0 for _ in backward[1:])]
    names = [f"part {i}" for i in range(len(backward))]
    ends = _ends(mesh, len(backward))
    sizes = {len(backward) - 1 - at: size for at, size in zip(ends, buckets, strict=True)}
    model = Model("m", tuple(
        Layer(name, (Gradient("g", sizes[i] // 4),) if i in sizes else ())
        for i, name in enumerate(names)
    ))  # fmt: skip
    update = update_seconds(asked.gpu, asked.shape.parameters)
    step = StepJob(
        model, Profile(tuple(forward), tuple(backward), "given"), batch, update=update,
        interference=law,
    )  # fmt: skip
    everyone = tuple(range(8))
    reductions = tuple(Reduction(None, (i,), everyone) for i in reversed(range(len(buckets))))
    method = Method("ddp", None, reductions, streams=1, in_order=True)

    def cost(gradients: tuple[int, ...]) -> CallCost:
        nbytes = model.workload.gradients[gradients[0]].nbytes
        return costs.of(MeshCall(REPLICAS, ALL_REDUCE, nbytes), 0)

    assert compose_step(step, method, SETUP, cost).seconds == mesh.seconds


def _ends(mesh, parts: int) -> list[int]:
    """The places of the parts, in the order of the backward pass, after which a bucket is ready."""
    nodes = [each for each in mesh.ran if each.rank == 0]
    named = [e.node.name for e in nodes if e.node.kind == COLLECTIVE]
    return [int(name.rpartition(".")[2]) for name in named if int(name.rpartition(".")[2]) < parts]


SCENARIO = 'topology = "dgx-h100"\nworkload = "gpt2"\n'


def test_both_ways_to_ask_about_one_job_agree(tmp_path):
    """GPT-2 on one DGX H100: the same compute, memory and law; buckets of 160 MB."""
    step, mesh = tmp_path / "step.toml", tmp_path / "mesh.toml"
    strategies = 'strategies = ["nccl+ddp=160,160,view"]\n'
    step.write_text(f'{SCENARIO}{strategies}[step]\nbatch = 16\ncompute = "H100"\n', "utf-8")
    mesh.write_text(
        f'{SCENARIO}[step]\nmesh = "dp=8"\nglobal_batch = 128\nmicro_batch = 16\n'
        'optimizer = "replicated"\n', "utf-8",
    )  # fmt: skip
    [one] = rank_steps(with_step(load_scenario(str(step))), with_today=False).candidates
    [other] = rank_meshes(load_meshes(str(mesh))).candidates

    assert one.step.seconds == pytest.approx(other.seconds, rel=5e-3)
    # The slowest of the GPUs, which differ, updates later too; on a mesh only kernels of passes.
    assert one.step.update == pytest.approx(other.step.update, rel=0.04)
    assert one.step.exposed == pytest.approx(other.step.exposed, abs=0.2e-3)
    assert one.step.interference == pytest.approx(other.step.interference, abs=0.2e-3)


def test_both_ways_count_one_memory(tmp_path):
    """Of mixed precision with the optimizer's states shared: ZeRO-1, Megatron-LM's distributed
    optimizer. A step pads what it shards, unit by unit.
    """
    step, mesh = tmp_path / "step.toml", tmp_path / "mesh.toml"
    step.write_text(
        f'{SCENARIO}strategies = ["nccl"]\n[step]\nbatch = 16\ncompute = "H100"\n'
        'method = "zero1"\nsharding = {param_dtype = "bfloat16", reduce_dtype = "float32"}\n',
        "utf-8",
    )
    mesh.write_text(
        f'{SCENARIO}[step]\nmesh = "dp=8"\nglobal_batch = 128\nmicro_batch = 16\n', "utf-8"
    )
    memory = rank_steps(with_step(load_scenario(str(step)))).recommended.step.memory
    held = rank_meshes(load_meshes(str(mesh))).candidates[0].step.memory

    assert (memory.parameters, memory.gradients) == (held.parameters, held.gradients)
    assert memory.optimizer == pytest.approx(held.optimizer, rel=1e-4)
    assert memory.activations.nbytes == held.activations.nbytes
    assert memory.peak == pytest.approx(held.peak, rel=1e-4)


def test_the_gpu_to_compute_as_counts_for_losses_and_rates(tmp_path):
    """On a machine of other GPUs: its SMs, and its FLOPs in the MFU."""
    path = tmp_path / "step.toml"
    found = []
    for name in ("A100", "B200"):
        text = SCENARIO.replace("dgx-h100", "dgx-a100")
        text += f'strategies = ["nccl+ddp"]\n[step]\nbatch = 16\ncompute = "{name}"\n'
        path.write_text(text, "utf-8")
        scenario = with_step(load_scenario(str(path)))
        found.append((loses_of(scenario.step.job, scenario.setup)(24), rank_steps(scenario)))
    (slow, one), (fast, other) = found

    assert slow / fast == pytest.approx(148 / 108)
    assert 0.1 < one.recommended.mfu < 1 > other.recommended.mfu > 0.1


def test_a_model_with_the_name_of_a_decoder_is_none():
    """Its layers are looked at."""
    tiny = Model("gpt2", (Layer("l", (Gradient("g", 9),)),))

    with pytest.raises(InputError, match="its layers are not those of the decoder"):
        kernels_profile(tiny, GPU, 1)
