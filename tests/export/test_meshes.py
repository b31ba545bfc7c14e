"""Settings of programs that train on meshes."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import fields, replace
from typing import Any

import pytest

from simreduce.errors import InputError
from simreduce.export import check_mesh_target
from simreduce.export.frameworks import MESH_PROGRAMS, MESH_VERSIONS, find_version
from simreduce.training.mesh import Mesh, MeshJob
from simreduce.workload.decoder import Decoder
from tests.training.mesh.jobs import GPU

LLAMA_SHAPE = Decoder(
    blocks=80, width=8192, heads=64, groups=8, head=128, inner=28672, words=128256, sequence=8192
)
LLAMA = MeshJob(
    shape=LLAMA_SHAPE, mesh=Mesh(tp=4, cp=2, dp=2, pp=4), gpu=GPU,
    micro_batch=1, micros=64, sequence=8192, schedule="interleaved", virtual=5, split=(4,) * 20,
    sequence_parallel=True, optimizer="distributed",
    overlap=frozenset(("grad_reduce", "param_gather")),
)  # fmt: skip
MIXTRAL = replace(
    LLAMA,
    shape=replace(
        LLAMA_SHAPE, experts=8, active=2, expert=14336, inner=0, blocks=32, width=4096, heads=32
    ),
    mesh=Mesh(tp=2, ep=4, dp=8, etp=1), virtual=1, schedule="1f1b", split=(32,),
)  # fmt: skip

MAIN, OLDER = "torchtitan=main", "torchtitan=0.2"

ENDS = {"split": (19, 20, 20, 19), "blocks": 78, "virtual": 1, "schedule": "1f1b"}
LAST = {"split": (20, 20, 20, 19), "blocks": 79, "virtual": 1, "schedule": "1f1b"}
LISTED = {"split": (5, 3, *(4,) * 18)}


def changed(job: MeshJob, **changes: Any) -> MeshJob:
    """A job with changes of itself, of its mesh and of its model."""
    for part in ("mesh", "shape"):
        own = getattr(job, part)
        names = {each.name for each in fields(own)} & changes.keys()
        job = replace(job, **{part: replace(own, **{n: changes.pop(n) for n in names})})
    return replace(job, **changes)


def flags(choice: MeshJob, target: str = "megatron") -> dict[str, str]:
    """Arguments by name, "" for those without a value."""
    text = MESH_PROGRAMS[target].export(choice)["megatron.args"].replace("\\\n", " ")
    return {name: value for name, _, value in map(_pair, text.split("--")[1:])}


def _pair(text: str) -> tuple[str, str, str]:
    return " ".join(shlex.split(text)).partition(" ")


def test_megatron_gets_the_mesh_and_the_model():
    found = flags(LLAMA)

    assert ("4", "4", "2", "5") == (
        found["tensor-model-parallel-size"],
        found["pipeline-model-parallel-size"],
        found["context-parallel-size"],
        found["num-virtual-stages-per-pipeline-rank"],
    )
    assert ("80", "8192", "64", "8", "28672", "128") == (
        found["num-layers"],
        found["hidden-size"],
        found["num-attention-heads"],
        found["num-query-groups"],
        found["ffn-hidden-size"],
        found["kv-channels"],
    )
    assert ("rope", "RMSNorm", "0.0") == (
        found["position-embedding-type"],
        found["normalization"],
        found["hidden-dropout"],
    )
    wanted = {"sequence-parallel", "use-distributed-optimizer", "overlap-param-gather", "swiglu",
              "overlap-grad-reduce", "no-overlap-p2p-communication", "disable-bias-linear",
              "untie-embeddings-and-output-weights", "bf16", "use-flash-attn"}  # fmt: skip
    assert wanted <= set(found)
    assert not {"fp16", "tp-comm-overlap", "recompute-granularity"} & set(found)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"half": "fp16"}, "fp16"),
        ({"bits": 8}, "fp8-format"),
        ({"reduced": 2}, "grad-reduce-in-bf16"),
        ({"recompute": "full"}, "recompute-num-layers"),
        ({"recompute": "selective"}, "recompute-activations"),
        (ENDS, "account-for-loss-in-pipeline-split"),
        (LAST, "decoder-last-pipeline-num-layers"),
        ({"order": "tp-cp-ep-pp-dp"}, "use-tp-pp-dp-mapping"),
        ({"overlap": frozenset(("tp",))}, "tp-comm-overlap"),
        ({"gated": False}, "squared-relu"),
    ],
)
def test_a_choice_has_its_flag(changes, flag):
    assert flag not in flags(LLAMA)
    assert flag in flags(changed(LLAMA, **changes))


def test_experts_have_flags():
    found = flags(MIXTRAL)

    assert ("8", "2", "4", "1", "14336", "alltoall") == (
        found["num-experts"],
        found["moe-router-topk"],
        found["expert-model-parallel-size"],
        found["expert-tensor-parallel-size"],
        found["moe-ffn-hidden-size"],
        found["moe-token-dispatcher-type"],
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dispatch": "deepep"}, {"moe-token-dispatcher-type": "flex",
                            "moe-flex-dispatcher-backend": "deepep"}),
        ({"capacity": 1.25, "pad": True}, {"moe-expert-capacity-factor": "1.25",
                                           "moe-pad-expert-input-to-capacity": ""}),
        ({"limited": (4, 8)}, {"moe-router-num-groups": "8", "moe-router-group-topk": "4"}),
        ({"dense": 3}, {"moe-layer-freq": "([0]*3+[1]*29)"}),
        ({"overlap": frozenset(("ep",))}, {"overlap-moe-expert-parallel-comm": ""}),
        ({"graphs": frozenset(("attention", "router"))},
         {"cuda-graph-impl": "transformer_engine",
          "cuda-graph-modules": "attn moe_router moe_preprocess"}),
        ({"latent": (1536, 512, 64)},
         {"multi-latent-attention": "", "q-lora-rank": "1536", "kv-lora-rank": "512",
          "qk-head-dim": "128", "qk-pos-emb-head-dim": "64", "v-head-dim": "128"}),
    ],
)  # fmt: skip
def test_experts_and_latent_attention_have_the_flags_of_their_settings(changes, expected):
    plain, found = flags(MIXTRAL), flags(changed(MIXTRAL, **changes))

    assert expected.items() <= found.items()
    assert not expected.items() & plain.items()


def test_nemo_gets_what_moves_tokens():
    text = MESH_PROGRAMS["nemo"].export(replace(MIXTRAL, dispatch="deepep", capacity=1.5))[
        "nemo.yaml"
    ]

    assert "  moe_flex_dispatcher_backend: deepep\n" in text
    assert "  moe_expert_capacity_factor: 1.5\n" in text
    assert "moe_" not in MESH_PROGRAMS["nemo"].export(LLAMA)["nemo.yaml"]


def test_nemo_gets_fields_of_experts_for_experts_only():
    dense, mixed = (MESH_PROGRAMS["nemo"].export(job)["nemo.yaml"] for job in (LLAMA, MIXTRAL))
    assert "  expert_tensor_parallel_size: " in mixed
    assert "expert_" not in dense


@pytest.mark.parametrize(("name", "file"), [("megatron", "megatron.env"), ("nemo", "nemo.env"),
                                            ("deepspeed", "megatron.env")])  # fmt: skip
def test_split_layers_need_a_variable_of_cuda(name, file):
    """Megatron-LM asserts it, and what is made of it does."""
    job = changed(LLAMA, schedule="1f1b", virtual=1, cp=1, dp=4, micros=32)
    told = MESH_PROGRAMS[name].export(job)[file]
    assert told == "CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    alone = changed(job, tp=1, dp=16, micros=8)
    assert file not in MESH_PROGRAMS[name].export(alone)


def titan(job: MeshJob, name: str = "torchtitan") -> dict[str, Any]:
    """Settings by section, as releases and main have them; `recompute` by itself."""
    [(file, text)] = MESH_VERSIONS[name].export(job).items()
    if name == OLDER:
        assert "torchtitan.toml" == file
        found = tomllib.loads(text)
        return found | {"recompute": found.pop("activation_checkpoint")["mode"]}
    assert "torchtitan.args" == file
    *words, last = shlex.split(text.replace("\\\n", " "))
    sections: dict[str, Any] = {"recompute": last.removeprefix("activation-checkpoint:")}
    for given in " ".join(words).split("--")[1:]:
        key, _, value = given.strip().partition(" ")
        section, _, name = key.partition(".")
        known = int(value) if value.isdigit() else value or True
        sections.setdefault(section, {})[name] = known
    return sections


@pytest.mark.parametrize(
    ("name", "training", "micro"),
    [
        ("torchtitan", {"local_batch_size": 64, "global_batch_size": 128, "seq_len": 8192,
                        "disable_cuda_graphs": True}, {"pipeline_parallel_microbatch_size": 1}),
        (OLDER, {"local_batch_size": 64, "global_batch_size": 128, "seq_len": 8192},
         {"pipeline_parallel_microbatch_size": 1}),
        (MAIN, {"num_tokens_per_microbatch_per_dp_rank": 8192, "max_context_length": 8192,
                "num_tokens_per_train_step": 128 * 8192, "disable_cuda_graphs": True},
         {"num_pp_microbatches": 64}),
    ],
)  # fmt: skip
def test_torchtitan_gets_the_words_of_its_version(name, training, micro):
    """Its parsers' answers are those of `validate/programs/torchtitan.py`."""
    found = titan(LLAMA, name)

    assert training == found["training"]
    assert "none" == found["recompute"]
    degrees = {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 4,
        "context_parallel_degree": 2,
        "expert_parallel_degree": 1,
        "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_layers_per_stage": 4,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    assert degrees | micro == found["parallelism"]


@pytest.mark.parametrize(
    ("name", "changes", "section", "expected"),
    [
        ("torchtitan", {"recompute": "full"}, "recompute", "full"),
        (OLDER, {"recompute": "full"}, "recompute", "full"),
        ("torchtitan", {"recompute": "op"}, "recompute", "selective"),
        ("torchtitan", {"sequence_parallel": False}, "parallelism",
         {"no-enable-sequence-parallel": True}),
        (MAIN, {"optimizer": "fsdp"}, "parallelism", {"fsdp_reshard_after_forward": "always"}),
        (MAIN, {"optimizer": "fsdp", "copies": 2, "dp": 8}, "parallelism",
         {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}),
        (MAIN, {"optimizer": "replicated"}, "parallelism",
         {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1}),
    ],
)  # fmt: skip
def test_torchtitan_gets_what_a_job_changes(name, changes, section, expected):
    plain, found = (titan(each, name)[section] for each in (LLAMA, changed(LLAMA, **changes)))

    assert plain != found
    assert found == (expected if isinstance(expected, str) else {**found, **expected})


def test_torchtitan_02_names_the_option_of_selective_recomputation():
    [text] = MESH_VERSIONS[OLDER].export(changed(LLAMA, recompute="op")).values()

    assert {"mode": "selective", "selective_ac_option": "op"} == tomllib.loads(text)[
        "activation_checkpoint"
    ]


def test_torchtitan_captures_no_graphs_where_ranks_have_stages_or_experts():
    """`Trainer.Config` refuses them there, and has them on by default."""
    alone = changed(LLAMA, pp=1, dp=8, virtual=1, split=(80,))

    assert "disable_cuda_graphs" not in titan(alone)["training"]
    for job in (LLAMA, MIXTRAL):
        assert titan(job)["training"]["disable_cuda_graphs"]


def test_torchtitan_had_a_degree_for_tensor_parallel_experts():
    split = changed(MIXTRAL, etp=2, dp=16)

    assert 1 == titan(MIXTRAL, OLDER)["parallelism"]["expert_tensor_parallel_degree"]
    assert 2 == titan(split, OLDER)["parallelism"]["expert_tensor_parallel_degree"]
    why = ["torchtitan splits no expert beside ep: use etp=1"]
    assert why == MESH_VERSIONS["torchtitan"].why_not(split) == MESH_VERSIONS[MAIN].why_not(split)


def test_deepspeed_gets_its_file_and_the_arguments_of_its_fork():
    choice = changed(LLAMA, schedule="1f1b", virtual=1, cp=1, dp=4, micros=32)
    config = json.loads(MESH_PROGRAMS["deepspeed"].export(choice)["ds_config.json"])

    assert (128, 1, 32) == (
        config["train_batch_size"],
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
    )
    assert 1 == config["zero_optimization"]["stage"]
    found = flags(choice, "deepspeed")
    assert {"deepspeed", "zero-stage"} <= set(found)
    assert "use-distributed-optimizer" not in found


def test_nemo_gets_its_fields():
    text = MESH_PROGRAMS["nemo"].export(LLAMA)["nemo.yaml"]

    assert "  virtual_pipeline_model_parallel_size: 5\n" in text
    assert "  overlap_param_gather: true\n" in text


@pytest.mark.parametrize(
    ("target", "changes", "reason"),
    [
        ("megatron", {"schedule": "zbv", "virtual": 2}, "no schedule zbv"),
        ("megatron", {"optimizer": "fsdp"}, "FSDP"),
        ("megatron", {"overlap": frozenset(("param_gather",))}, "only where it overlaps"),
        ("megatron", {"micros": 6}, "multiple of pp"),
        ("megatron", {"recompute": "op"}, "no recomputation op by op"),
        ("nemo", {"recompute": "op"}, "no recomputation op by op"),
        ("deepspeed", {"recompute": "op"}, "no recomputation op by op"),
        ("deepspeed", {"optimizer": "fsdp", "copies": 2}, "hybrid shards"),
        ("megatron", LISTED, "evenly"),
        ("nemo", {"graphs": frozenset(("router",))}, "cuda_graphs"),
        ("torchtitan", {"capacity": 1.0}, "capacity_factor"),
        ("torchtitan", {"dispatch": "deepep"}, "dispatch"),
        ("megatron", {"order": "dp-tp-cp-ep-pp"}, "does not lie"),
        ("megatron", {"schedule": "1f1b", "virtual": 1, "overlap": frozenset(("p2p",))}, "sends"),
        ("nemo", {"order": "tp-cp-ep-pp-dp"}, "does not lie"),
        ("torchtitan", ENDS, "evenly"),
        ("torchtitan", {"recompute": "selective"}, "keeps attention"),
        ("torchtitan", {"experts": 8, "etp": 1}, "unless they have ranks of"),
        (OLDER, {"optimizer": "replicated", "cp": 1}, "replicates only without other axes"),
        (OLDER, {"sequence_parallel": False}, "share sequences"),
        (OLDER, {"experts": 8, "ep": 2, "etp": 2}, "of one or of all"),
        ("deepspeed", LAST, "evenly"),
        ("deepspeed", {"schedule": "1f1b"}, "context parallel"),
    ],
)
def test_what_a_program_cannot_do_is_refused(target, changes, reason):
    choice = changed(LLAMA, **changes)
    found = MESH_VERSIONS[target].why_not(choice)

    assert [reason in each for each in found].count(True) == 1
    with pytest.raises(InputError, match=reason):
        MESH_VERSIONS[target].export(choice)


def test_experts_with_tensor_parallel_ranks_need_sequence_parallelism():
    assert MESH_PROGRAMS["megatron"].why_not(replace(MIXTRAL, sequence_parallel=False))
    assert not MESH_PROGRAMS["megatron"].why_not(MIXTRAL)


def test_an_unknown_target_gets_the_nearest():
    near = r"megatorn: takes no mesh \(did you mean 'megatron'\?\); megatron, nemo, torchtitan"
    with pytest.raises(InputError, match=near):
        check_mesh_target("megatorn")
    assert {"megatron", "nemo", "torchtitan", "deepspeed"} == set(MESH_PROGRAMS)


def test_megatron_interleaves_only_what_it_starts():
    """More than two stages, or two whose sends are overlapped; one stage has nothing to interleave
    (megatron/training/arguments.py).
    """
    two = changed(LLAMA, pp=2, dp=4, virtual=10)
    with pytest.raises(InputError, match="interleaves two ranks of a pipeline only where"):
        flags(two)
    beside = flags(changed(two, overlap=frozenset(("p2p",))))
    assert beside["num-virtual-stages-per-pipeline-rank"] == "10"
    assert "no-overlap-p2p-communication" not in beside
    alone = flags(changed(LLAMA, pp=1, dp=8, split=(16,) * 5))
    assert not {"num-virtual-stages-per-pipeline-rank", "no-overlap-p2p-communication"} & {*alone}


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("torchtitan", "torchtitan=0.3", "torchtitan"),
        ("torchtitan", "torchtitan=0.3.0", "torchtitan"),
        ("torchtitan", "torchtitan=0.2.2", OLDER),
        ("torchtitan", MAIN, MAIN),
        ("pytorch", "fsdp=2", "pytorch"),
        ("pytorch", "fsdp=1", "fsdp=1"),
    ],
)
def test_versions_may_be_longer_than_those_known(name, version, found):
    assert found == find_version(name, version)


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("torchtitan", "torchtitan=0.1",
         "has files for torchtitan=0.3, torchtitan=0.2, torchtitan=main"),
        ("torchtitan", "torchtitan=0.33", "has files for torchtitan=0.3"),
        ("torchtitan", "torchtitan=0.2.x", r"\(did you mean 'torchtitan=0.2'\?\)"),
        ("torchtitan", "torchtitan=0.2.", "has files for torchtitan=0.3"),
        ("torchtitan", "torchtitan=maine", r"\(did you mean 'torchtitan=main'\?\)"),
        ("torchtitan", "torchtitan=main.2x", "has files for torchtitan=0.3"),
        ("pytorch", "torchtitan=0.2", "PyTorch has files for fsdp=2, fsdp=1"),
        ("megatron", "megatron=1", "--for megatron=1: Megatron-LM has files for one version"),
    ],
)  # fmt: skip
def test_unknown_versions_get_those_that_are_known(name, version, words):
    with pytest.raises(InputError, match=words):
        find_version(name, version)


@pytest.mark.parametrize(("mesh", "wanted"), [({}, True), ({"tp": 1, "cp": 1, "dp": 16}, False)])
def test_megatron_s_variable_is_written_where_it_asks_for_it(mesh, wanted):
    files = MESH_PROGRAMS["megatron"].export(changed(LLAMA, **mesh))

    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1\n" == files.get("megatron.env")) is wanted
