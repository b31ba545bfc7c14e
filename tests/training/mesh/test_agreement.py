"""A mesh of replicas alone, and the step of DDP: two questions about one job, and one answer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

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
from simreduce.training.executions import BACKWARD as BACK, COLLECTIVE, FORWARD as AHEAD
from simreduce.training.gpus import GPUS
from simreduce.training.interference import Channels
from simreduce.training.memory import ModelRun
from simreduce.training.mesh import Mesh, MeshJob
from simreduce.training.mesh.held import update_seconds
from simreduce.training.mesh.parts import ALL_REDUCE, MeshCall
from simreduce.training.mesh.passes import REPLICAS, Costs, MeshPasses, kernels_profile
from simreduce.training.mesh.pipeline import BACKWARD, FORWARD, Action
from simreduce.training.mesh.write import simulate_mesh
from simreduce.training.passes import loses_of
from simreduce.training.sharded import Sharding
from simreduce.training.simulation import compose_step
from simreduce.workload import Gradient, Layer, Model
from simreduce.workload.loader import load_decoder, load_model
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
    step.write_text(
        f'{SCENARIO}{strategies}[step]\nbatch = 16\ngpu = "H100"\nkernels = "megatron"\n', "utf-8"
    )
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
        f'{SCENARIO}strategies = ["nccl"]\n[step]\nbatch = 16\ngpu = "H100"\nkernels = "megatron"\n'
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
        text += (
            f'strategies = ["nccl+ddp"]\n[step]\nbatch = 16\ngpu = "{name}"\nkernels = "megatron"\n'
        )
        path.write_text(text, "utf-8")
        scenario = with_step(load_scenario(str(path)))
        loses = loses_of(scenario.step.job, scenario.setup)
        found.append((loses((Channels(24),), BACK), rank_steps(scenario)))
    (slow, one), (fast, other) = found

    assert slow > fast > 0.0  # whose kernels wait for the host, beside a collective or not
    assert 0.1 < one.recommended.mfu < 1 > other.recommended.mfu > 0.1


def test_a_model_with_the_name_of_a_decoder_is_none():
    """Its layers are looked at."""
    tiny = Model("gpt2", (Layer("l", (Gradient("g", 9),)),))

    with pytest.raises(InputError, match="its layers are not those of the decoder"):
        kernels_profile(tiny, GPU, 1, ModelRun(), Sharding())


def test_passes_of_a_mesh_lose_what_those_of_a_step_lose():
    """Of replicas alone on H100, forward and backward each: the same kernels beside the same."""
    model, setup = load_model("gpt2"), Setup("dgx-h100", "nccl")
    gpu = replace(GPUS["H100"], spread=0.0)
    shape = load_decoder("gpt2").shape
    kernels = partial(kernels_profile, model, batch=16, run=ModelRun(), numerics=Sharding())
    step = StepJob(model, kernels(gpu), 16, gpu=gpu, kernels=kernels)
    mesh = MeshJob(shape, Mesh(dp=8), gpu, 16, 1, shape.sequence, "1f1b", 1, (shape.blocks,))
    one, other = loses_of(step, setup), MeshPasses(mesh, Costs(setup, mesh.mesh)).law()
    found = {
        (phase, count): (one((Channels(count),), phase), other((Channels(count),), phase))
        for phase in (AHEAD, BACK)
        for count in (4, 24)
    }
    assert all(mine == pytest.approx(its) and mine > 0.0 for mine, its in found.values())
    assert found[AHEAD, 24][0] != pytest.approx(found[BACK, 24][0], rel=0.01)


def test_a_pass_that_waits_for_calls_loses_less():
    """Sums between kernels take as long beside a collective; kernels by themselves lose more."""
    asked = job(Mesh(tp=8), "transformer:layers=2,hidden=4096,heads=32,vocab=4096,seq=512")
    passes = MeshPasses(asked, Costs(SETUP, asked.mesh))
    held = (Channels(24),)

    for phase in (AHEAD, BACK):
        assert 0.0 < passes.law()(held, phase) < 0.9 * passes.loses(held, phase)
