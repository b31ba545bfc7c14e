"""The table `[step]` with a `mesh`: jobs, and every reason why one cannot be."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, strategies as st

from simreduce.engine.setup import Setup
from simreduce.files.formats.syntax import Faults
from simreduce.training.mesh import split_short
from simreduce.training.mesh.mesh_table import MeshQuestion, parse_mesh
from simreduce.workload.loader import load_decoder
from tests.training.mesh.jobs import EXPERTS, GPT, LLAMA


@cache
def _setup(machine: str) -> Setup:
    return Setup(machine, "nccl")


def _ask(table: dict, model: str = GPT, machine: str = "dgx-a100") -> MeshQuestion | list[str]:
    """The question, or its faults."""
    faults = Faults("file")
    found = parse_mesh(
        {"global_batch": 16, **table}, load_decoder(model), _setup(machine), faults
    )  # fmt: skip
    return found or list(faults.problems)


def test_defaults():
    """Of a mesh alone: distributed optimizer, overlap of replicas, sequence parallel with tp."""
    (job,) = _ask({"mesh": "tp=2,pp=2"}).jobs

    assert (2, 2, 2) == (job.mesh.tp, job.mesh.pp, job.mesh.dp)
    assert ("distributed", "none", "fused", "1f1b", 1) == (
        job.optimizer, job.recompute, job.attention, job.schedule, job.virtual,
    )  # fmt: skip
    assert {"grad_reduce", "param_gather", "tp_grad"} == job.overlap
    assert job.sequence_parallel
    assert (1, 8, 32, (2, 2)) == (job.micro_batch, job.micros, job.sequence, job.split)
    assert (16, 4, 1.0, "A100") == (job.bits, job.reduced, job.imbalance, job.gpu.title)
    (alone,) = _ask({"mesh": "dp=8"}).jobs
    assert not alone.sequence_parallel


def test_every_key_reaches_the_job():
    """None is dropped."""
    (job,) = _ask({
        "mesh": "tp=2,pp=2", "order": "pp-tp-cp-ep-dp", "micro_batch": 2, "recompute": "full",
        "attention": "unfused", "sequence_parallel": False, "optimizer": "replicated",
        "overlap": ["p2p", "tp"], "precision": "fp8", "reduce": "bfloat16", "imbalance": 1.5,
        "gpu": "H100", "pipeline": {"schedule": "zero_bubble", "virtual": 2,
                                        "layers": [1, 1, 2, 0]},
    }).jobs  # fmt: skip

    assert "pp-tp-cp-ep-dp" == job.mesh.order
    assert (2, 4, "full", "unfused", "replicated") == (
        job.micro_batch, job.micros, job.recompute, job.attention, job.optimizer,
    )  # fmt: skip
    assert not job.sequence_parallel
    assert {"p2p", "tp"} == job.overlap
    assert (8, 2, 1.5, "H100") == (job.bits, job.reduced, job.imbalance, job.gpu.title)
    assert ("zero_bubble", 2, (1, 1, 2, 0)) == (job.schedule, job.virtual, job.split)


def test_keys_of_experts_reach_the_job():
    """A drawn imbalance does, too."""
    keys = {
        "mesh": "ep=4", "capacity_factor": 1.25, "dispatch": "deepep", "cuda_graphs": ["router"],
    }  # fmt: skip
    (job,) = _ask(keys, EXPERTS).jobs
    (padded,) = _ask({**keys, "pad_to_capacity": True}, EXPERTS).jobs
    (drawn,) = _ask({**keys, "router_seed": 7}, EXPERTS).jobs
    (skewed,) = _ask({"mesh": "ep=4", "router_seed": 7, "router_gini": 0.6}, EXPERTS).jobs
    (plain,) = _ask({"mesh": "ep=4"}, EXPERTS).jobs

    assert (1.25, "deepep", {"router"}, 1.0) == (
        job.capacity, job.dispatch, job.graphs, job.imbalance,
    )  # fmt: skip
    assert (1.25, True) == (padded.imbalance, padded.pad)
    assert 1.0 < drawn.imbalance <= 1.25 < skewed.imbalance
    assert (0.0, "alltoall", frozenset()) == (plain.capacity, plain.dispatch, plain.graphs)


@pytest.mark.parametrize(
    ("table", "model", "reasons"),
    [
        ({"imbalance": 1.2, "router_seed": 1}, EXPERTS,
         ["imbalance: router_seed draws it; give one of both"]),
        ({"router_gini": 0.2, "pad_to_capacity": True}, EXPERTS,
         ["router_gini: needs a router_seed", "pad_to_capacity: needs a capacity_factor"]),
        ({"capacity_factor": 1.0, "dispatch": "deepep"}, GPT,
         ["capacity_factor: the model has no experts; leave it out",
          "dispatch: the model has no experts; leave it out"]),
        ({"dispatch": "deepp"}, EXPERTS, ["dispatch: "]),
    ],
)  # fmt: skip
def test_keys_of_experts_that_do_not_go_together(table, model, reasons):
    """All at once."""
    found = [fault.removeprefix("file: step.") for fault in _ask({"mesh": "dp=8", **table}, model)]

    assert len(reasons) == len(found)
    assert all(a.startswith(b) for a, b in zip(found, reasons, strict=True))


def test_a_kernel_sums_what_tensor_parallel_ranks_have_where_it_can():
    table = {"mesh": "tp=4,dp=2", "tensor_all_reduce": "oneshot", "sequence_parallel": False}
    (job,) = _ask(table, machine="dgx-h100").jobs
    assert job.tensor_all_reduce == "oneshot"
    assert "tensor_all_reduce=oneshot" in job.text
    shared = _ask({**table, "sequence_parallel": True}, machine="dgx-h100")
    assert "tensor_all_reduce: sequence parallel ranks gather and scatter" in shared[0]
    unlinked = _ask({**table, "mesh": "tp=2,dp=4"}, machine="a100-pcie-8")
    assert "tensor_all_reduce: oneshot: needs NVLinks or NVSwitches" in unlinked[0]
    (near,) = _ask({**table, "tensor_all_reduce": "multimen"}, machine="dgx-h100")
    assert "multimem" in near


def test_lists_are_combined():
    """Meshes, micro batches, policies, optimizers, and stages of a GPU, each once."""
    found = _ask({
        "mesh": ["pp=2", "pp=2,dp=4", "tp=2,pp=2"], "micro_batch": [1, 2],
        "recompute": ["none", "full"],
        "optimizer": ["distributed", "replicated"], "pipeline": {"virtual": [1, 2]},
    })  # fmt: skip
    pairs = {(job.schedule, job.virtual) for job in found.jobs}

    assert 2 * 2 * 2 * 2 * 2 == len(found.jobs) == len(set(found.jobs))
    assert {("1f1b", 1), ("interleaved", 2)} == pairs
    assert found.named


def test_auto_is_every_mesh_that_fits():
    """All ways of tensor parallel ranks within a machine and of stages, with what divides them."""
    found = _ask({"mesh": "auto", "micro_batch": 1}, LLAMA)
    meshes = {(job.mesh.tp, job.mesh.pp, job.mesh.dp) for job in found.jobs}

    assert {
        (tp, pp, 8 // tp // pp) for tp in (1, 2, 4) for pp in (1, 2, 4) if tp * pp <= 8
    } == meshes  # fmt: skip
    assert not found.named


def test_auto_shares_experts_among_one_or_all():
    """Of the tensor parallel ranks; ranks of experts divide what is left."""
    jobs = _ask({"mesh": "auto", "micro_batch": 1}, EXPERTS).jobs

    assert {1, 2, 4, 8} == {job.mesh.ep for job in jobs}
    assert {(tp, etp) for tp in (1, 2, 4) for etp in (1, tp)} == {
        (job.mesh.tp, job.mesh.expert_tensor) for job in jobs
    }


def test_auto_lays_ranks_in_both_orders_of_megatron():
    """Once where they are the same; others only if they are stated."""
    jobs = _ask({"mesh": "auto"}).jobs
    usual, other = "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"
    orders: dict[object, set[str]] = {}
    for job in jobs:
        mesh = job.mesh
        orders.setdefault((mesh.tp, mesh.dp, mesh.pp), set()).add(mesh.order)

    for (_, dp, pp), found in orders.items():
        assert ({usual, other} if dp > 1 and pp > 1 else {usual}) == found
    stated = _ask({"mesh": "auto", "order": "dp-tp-cp-ep-pp"}).jobs
    assert {"dp-tp-cp-ep-pp"} == {job.mesh.order for job in stated}


def test_orders_are_ranked():
    """Each with each mesh, and a faulty one has its place."""
    found = _ask({"mesh": ["tp=2,pp=2", "pp=4"], "order": ["tp-cp-ep-dp-pp", "pp-tp-cp-ep-dp"]})

    assert 4 == len(found.jobs)
    assert {"order=pp-tp-cp-ep-dp" in job.text for job in found.jobs} == {True, False}
    (fault,) = _ask({"mesh": "tp=2", "order": ["tp-cp-ep-dp-pp", "tp-pp"]})
    assert "step.order[1]: must have each of tp, cp, ep, dp, pp once" in fault


def test_auto_tries_every_schedule_where_it_is_legal():
    """And every number of stages that the blocks are split into, however many."""
    model = GPT.replace("layers=4", "layers=48")
    jobs = _ask({"mesh": "auto", "micro_batch": 1, "recompute": "none"}, model).jobs
    found = {(job.schedule, job.virtual) for job in jobs if job.mesh.pp == 2 and job.mesh.dp == 2}

    assert {("1f1b", 1), ("zbv", 2), ("dualpipe", 2), ("zero_bubble", 1)} <= found
    stages = {virtual for schedule, virtual in found if schedule == "interleaved"}
    assert {2, 3, 4, 6, 8, 12, 24} <= stages
    assert {1} | stages == {virtual for schedule, virtual in found if schedule == "zero_bubble"}
    assert {"1f1b"} == {job.schedule for job in jobs if job.mesh.pp == 1}


def test_auto_shards_all_where_there_are_no_stages():
    """FSDP with a pipeline is not simulated."""
    jobs = _ask({"mesh": "auto", "micro_batch": 1, "recompute": "none"}).jobs

    assert {"distributed", "fsdp"} == {job.optimizer for job in jobs if job.mesh.pp == 1}
    assert {"distributed"} == {job.optimizer for job in jobs if job.mesh.pp > 1}


def test_uneven_stages():
    """The first and the last have a block less, if that is even; else as stated."""
    model = GPT.replace("layers=4", "layers=6")
    (job,) = _ask({"mesh": "pp=4"}, model).jobs
    (stated,) = _ask({"mesh": "pp=4", "pipeline": {"layers": [0, 3, 2, 1]}}, model).jobs

    assert (1, 2, 2, 1) == job.split
    assert (0, 3, 2, 1) == stated.split
    assert [range(0), range(3), range(3, 5), range(5, 6)] == [stated.blocks(s) for s in range(4)]


@pytest.mark.parametrize(
    ("table", "model", "reasons"),
    [
        (
            {"mesh": "tp=8,ep=2", "global_batch": 15, "micro_batch": 2},
            LLAMA.replace("heads=8", "heads=4"),
            [
                "tp: 8 ways do not share 4 heads evenly; 4 do",
                "ep: the model has no experts for 2 ways; leave ep out",
                "batch: global_batch 15 is no multiple of micro_batch x dp, 2; 14 is",
            ],
        ),
        (
            {"mesh": "tp=8,etp=2"},
            GPT,
            ["etp: the model has no experts for 2 ways; leave etp out"],
        ),
        (
            {"mesh": "tp=4,pp=2", "global_batch": 10**9},
            GPT,
            [
                (
                    "micro_batch: micro batches x stages are more than can be simulated: at most"
                    " 32768; raise micro_batch, or lower global_batch"
                )
            ],
        ),
        (
            {"mesh": "pp=8"},
            GPT.replace("layers=4", "layers=5"),
            ["pp: 8 ways do not share 5 layers evenly; 5 do"],
        ),
        (
            {"mesh": "tp=4,pp=2", "pipeline": {"layers": [1, 2, 1]}},
            GPT,
            ["layers: pipeline.layers has 4 layers in 3 stages; it takes 4 in 2"],
        ),
        (
            {"mesh": "tp=8"},
            LLAMA.replace("ffn=96", "ffn=100"),
            ["tp: 8 ways do not share 100 columns of the feed-forward part evenly; 5 or 10 do"],
        ),
        (
            {"mesh": "tp=2"},
            LLAMA.replace("heads=8,groups=4", "heads=6,head=8,groups=3"),
            ["tp: 2 ways do not share 3 groups of keys and values evenly; 1 or 3 do"],
        ),
        (
            {"mesh": "cp=8"},
            GPT.replace("seq=32", "seq=40"),
            [
                ("cp: 16 ways do not share 40 tokens of a sequence (an early and a late part for "
                "each rank) evenly; 10 or 20 do")
            ],
        ),
        (
            {"mesh": "tp=2,cp=4", "sequence_parallel": True},
            GPT.replace("seq=32", "seq=24"),
            [],
        ),
        (
            {"mesh": "tp=8"},
            GPT.replace("seq=32", "seq=36"),
            ["tp: 8 ways do not share 36 tokens of a sequence evenly; 6 or 9 do"],
        ),
        (
            {"mesh": "ep=8"},
            EXPERTS.replace("experts=8", "experts=12"),
            ["ep: 8 ways do not share 12 experts evenly; 6 or 12 do"],
        ),
        (
            {"mesh": "tp=2,etp=8,ep=4"},
            EXPERTS,
            ["ep: ep x etp is 32, which does not divide tp x cp x dp, 8"],
        ),
        (
            {"mesh": "tp=8"},
            EXPERTS.replace("expert_ffn=48", "expert_ffn=44").replace("groups=4", "groups=8"),
            ["etp: 8 ways do not share 44 columns of an expert evenly; 4 or 11 do"],
        ),
        (
            {"mesh": "pp=2,ep=2", "order": "tp-cp-ep-pp-dp"},
            EXPERTS,
            [
                ("order: tp-cp-ep-pp-dp would have a stage's experts on other ranks than its "
                "attention; an order that ends in pp does not")
            ],
        ),
        (
            {"mesh": "pp=2", "optimizer": "fsdp"},
            GPT,
            ["optimizer: fsdp with pp is not simulated; distributed is"],
        ),
        (
            {"mesh": "dp=8", "recompute": "op", "optimizer": "distributed"},
            EXPERTS,
            [("recompute: nobody counted op of experts, biases, latent or unfused attention; "
              "full is known")],
        ),
        (
            {"mesh": "dp_replicate=2", "optimizer": "distributed"},
            GPT,
            [("dp_replicate: is for optimizer = 'fsdp', whose shards it copies; "
              "this is distributed")],
        ),
        (
            {"mesh": "dp_replicate=3", "optimizer": "fsdp"},
            GPT,
            ["dp_replicate: 3 ways do not share 8 replicas (dp) evenly; 2 or 4 do"],
        ),
        (
            {"mesh": "pp=2", "pipeline": {"schedule": "zbv"}},
            GPT,
            ["schedule: zbv has two stages on a GPU: virtual = 2"],
        ),
    ],
)  # fmt: skip
def test_every_reason_of_a_mesh_that_cannot_be(table, model, reasons):
    """With the nearest that can. Beside a mesh that can be, it is refused by its name."""
    found = _ask(table, model)
    if not reasons:
        assert 1 == len(found.jobs)
        return

    assert reasons == [fault.split(": ", 2)[2].split(": ", 1)[1] for fault in found]
    both = _ask({**table, "mesh": [table["mesh"], "dp=8"], "optimizer": "distributed"}, model)
    if "optimizer" not in table and "pipeline" not in table and "global_batch" not in table:
        (refused,) = both.refused
        assert tuple(reasons) == refused.reasons
        assert refused.name.startswith(table["mesh"].split(",")[0])


def test_a_file_of_a_schedule_may_place_stages_as_it_likes(tmp_path):
    """Memory and passes follow it; what cannot end is refused."""
    path = tmp_path / "mine.csv"
    path.write_text("1F0,2F0,2B0,1B0\n0F0,3F0,3B0,0B0\n", "utf-8")
    table = {
        "mesh": "tp=4,pp=2", "global_batch": 1,
        "pipeline": {"schedule": str(path), "virtual": 2},
    }  # fmt: skip
    (job,) = _ask(table).jobs
    path.write_text("1B0,2F0,2B0,1F0\n0F0,3F0,3B0,0B0\n", "utf-8")
    (fault,) = _ask(table)

    assert (1, 0, 0, 1) == job.home
    assert "rank 0:  | waits for its turn at 1B0" in fault


@pytest.mark.parametrize(
    ("model", "kernels", "policy"),
    [(LLAMA, "torchtitan", "op"), (LLAMA, "megatron", "selective"),
     (EXPERTS, "torchtitan", "selective")],
)  # fmt: skip
def test_torchtitan_means_op_by_op_by_selective(model, kernels, policy):
    table = {"mesh": "dp=8", "recompute": "selective", "kernels": kernels}
    [job] = _ask({**table, "optimizer": "fsdp"}, model).jobs

    assert job.recompute == policy


def test_unknown_keys_have_a_nearest():
    """All of them at once, in both tables."""
    found = _ask({
        "mesh": "tp=2", "ordr": "x", "recompute": "selectiv", "optimizer": "fsdpp",
        "overlap": ["grad_reduce", "tpp"], "order": "tp-pp", "micro_batch": 0, "precision": "bf61",
        "pipeline": {"virtal": 2},
    })  # fmt: skip

    assert [
        "file: step.ordr: unknown key (did you mean 'order'?)",
        "file: step.order: must have each of tp, cp, ep, dp, pp once, such as tp-cp-ep-dp-pp",
        "file: step.micro_batch: must be a whole number from 1 to 1000000, got 0",
        (
            "file: step.recompute: must be one of none, selective, full, op, got 'selectiv' "
            "(did you mean 'selective'?)"
        ),
        (
            "file: step.optimizer: must be one of replicated, distributed, fsdp, got 'fsdpp' "
            "(did you mean 'fsdp'?)"
        ),
        "file: step.pipeline.virtal: unknown key (did you mean 'virtual'?)",
    ] == [each for each in found if "overlap" not in each and "precision" not in each]
    assert 2 == sum("did you mean 'tp'" in each or "'bf16'" in each for each in found)


def test_faults_of_all_meshes_at_once():
    """Of each text, and of what the machine has no room for."""
    found = _ask({"mesh": ["tpp=2,pp=0", "tp=16", "dp=4"]})

    assert [
        "file: step: mesh: unknown axis 'tpp' (did you mean 'tp'?)",
        "file: step: mesh: pp must be a whole number from 1 to 1048576, got '0'",
        "file: step: mesh: tp x cp x pp is 16, and the machine has 8; products of 8 divide them",
        "file: step: mesh: dp=4 needs 4 GPUs, and the machine has 8; leave dp out: dp=8",
    ] == found


def test_auto_where_nothing_fits():
    """A batch that no replica divides."""
    (fault,) = _ask({"mesh": "auto", "global_batch": 1, "micro_batch": 2}, LLAMA)

    words = "file: step.mesh: no mesh of 8 GPUs fits the model and the batch"
    assert fault.partition("; ")[0] == words


def test_auto_has_fewer_blocks_on_the_last_stage_where_no_other_split_works():
    """61 blocks on 16 stages: 15 of 4 and one of 1, as on no other mesh than one that is tried."""
    asked = _ask({"mesh": "auto", "global_batch": 512}, "deepseek-v3", "dgx-h100x32")
    splits = {job.split for job in asked.jobs if job.mesh.pp == 16}

    assert {(*(4,) * 15, 1)} == splits
    assert all(job.virtual == 1 for job in asked.jobs if job.mesh.pp == 16)


@given(blocks=st.integers(1, 200), stages=st.integers(1, 64))
def test_a_short_last_stage(blocks, stages):
    """All blocks, in order; as many on each but fewer, and some, on the last."""
    split = split_short(blocks, stages)

    if split is None:
        assert -(-blocks // stages) * (stages - 1) >= blocks
        return
    assert (stages, blocks) == (len(split), sum(split))
    assert len({*split[:-1]}) <= 1
    assert 0 < split[-1] <= split[0]


@pytest.mark.parametrize("mesh", ["tp=2,pp=2", "auto"])
def test_an_unknown_schedule_is_a_fault(mesh):
    """Also where all meshes are tried, of which some have no pipeline."""
    [fault] = _ask({"mesh": mesh, "pipeline": {"schedule": ["1f1bb", "gpipe"]}})

    assert fault == (
        "file: step.pipeline.schedule: no schedule '1f1bb' (did you mean '1f1b'?); or a file with a"
        " line for each rank"
    )


def test_experts_of_their_own_need_split_sequences():
    """And a router a model with experts."""
    mesh = {"mesh": "tp=2,ep=4,etp=1", "sequence_parallel": False}
    [fault] = _ask(mesh, EXPERTS)
    [other] = _ask({"mesh": "dp=8", "cuda_graphs": ["router"]})

    assert "need sequence_parallel" in fault
    assert "step.cuda_graphs: the model has no experts" in other


def test_orders_that_a_user_lists_are_all_tried():
    """Without stages, too, where Megatron-LM's two lay ranks alike."""
    own, usual = (
        _ask({"mesh": "auto", "order": ["tp-cp-ep-dp-pp", other]}).jobs
        for other in ("dp-tp-cp-ep-pp", "tp-cp-ep-pp-dp")
    )

    assert 2 == len({job.mesh.order for job in own if job.mesh.pp == 1})
    assert 1 == len({job.mesh.order for job in usual if job.mesh.pp == 1})
