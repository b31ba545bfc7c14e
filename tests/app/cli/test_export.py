"""`simreduce export` and `simreduce verify FILE`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simreduce.planners.nccl.constants import load_tuner

SCENARIO = """
topology = "switch:4"
workload = "bytes:64KiB"
strategies = ["ring", "nccl+ddp", "nccl+fusion=1M"]
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(SCENARIO, "utf-8")
    return path


def test_files_are_printed_or_written(simreduce, tmp_path):
    printed = simreduce("export", "nccl", "dgx1v", "--algo", "nccl:tree+ll").out
    out = tmp_path / "settings"
    written = simreduce("export", "nccl", "dgx1v", "--algo", "nccl:tree+ll", "--out", out)

    assert written.out.split() == [str(out / "nccl.env"), str(out / "nccl_tuner.csv")]
    assert printed == "".join(
        f"# {name}\n{(out / name).read_text('utf-8')}" for name in ("nccl.env", "nccl_tuner.csv")
    )
    assert len(load_tuner(str(out / "nccl_tuner.csv"))) > 5
    again = simreduce("nccl", "dgx1v", "--tuner", out / "nccl_tuner.csv", "-b", "64M")
    assert "a rule of the tuner's file" in again.out.splitlines()[-1]


def test_without_a_strategy_it_is_the_fastest_that_the_target_takes(simreduce, scenario):
    found = simreduce("export", "horovod", scenario)
    assert found.err.endswith("nccl+fusion=1M: advised for Horovod by a\n")
    assert "HOROVOD_FUSION_THRESHOLD=1048576" in found.out
    assert "HOROVOD_CYCLE_TIME" not in found.out
    assert "ring on switch:4" in simreduce("export", "msccl", scenario).out
    assert "ring on switch:4" in simreduce("export", "msccl", "switch:4").out
    assert "wrap(model" in simreduce("export", "pytorch", "switch:4").out
    refused = simreduce("export", "tf_cnn_benchmarks", scenario)
    assert refused.status == 2
    assert "tf_cnn_benchmarks has no setting for any of its strategies" in refused.err


def test_nccl_s_settings_of_a_machine_are_what_tune_finds(simreduce):
    """Of eight GPUs with one NIC a ring, NCCL's own choice, sends 15/8 of a tensor over it, and a
    tree one.
    """
    found = simreduce("export", "nccl", "a100-pcie-8x2", "-b", "64M")

    assert "a search for nccl advises" in found.err
    assert "NCCL_ALGO=allreduce:tree\n" in found.out
    assert "nccl:ring+" in simreduce("nccl", "a100-pcie-8x2", "-b", "64M").out


def test_a_sharded_step_gives_its_settings_to_fsdp_and_deepspeed(simreduce, tmp_path):
    path = tmp_path / "step.toml"
    path.write_text(
        """
topology = "switch:4"
workload = "gpt2"
strategies = ["nccl"]
[step]
batch = 4
time = "10 ms"
method = ["fsdp", "zero2"]
accumulate = 2
[step.sharding]
param_dtype = "bfloat16"
forward_prefetch = 1
""",
        "utf-8",
    )
    words = {
        "fsdp=2": ("fully_shard(unit", "ahead = 1", "MixedPrecisionPolicy(param_dtype="),
        "fsdp=1": (
            "Strategy.FULL_SHARD",
            '"forward_prefetch": True',
            "MixedPrecision(param_dtype=",
        ),
    }
    for version, said in words.items():
        fsdp = simreduce("export", "pytorch", path, "--algo", "nccl", "--for", version).out
        assert all(each in fsdp for each in (*said, "of 2 losses"))
    newest = simreduce("export", "pytorch", path, "--algo", "nccl", "--method", "fsdp2").out
    assert newest == simreduce("export", "pytorch", path, "--algo", "nccl").out
    assert "fully_shard(unit" in newest
    found = json.loads(
        simreduce("export", "deepspeed", path, "--algo", "nccl", "--method", "zero2").out
    )
    assert (found["gradient_accumulation_steps"], found["bf16"]) == (2, {"enabled": True})
    assert found["train_micro_batch_size_per_gpu"] == 4
    # The root has the embeddings and the last norm, a block of GPT-2 7.1 million elements.
    assert found["zero_optimization"]["reduce_bucket_size"] == 50257 * 768 + 1024 * 768 + 2 * 768
    wrong = simreduce("export", "deepspeed", path, "--algo", "nccl", "--method", "zero3")
    assert wrong.status == 2
    assert "--method zero3: the step has fsdp, zero2" in wrong.err


def test_of_a_step_it_is_the_strategy_with_the_fastest_step(simreduce, tmp_path):
    """Which overlaps: one bucket is the fastest all-reduce, and waits for the whole pass."""
    path = tmp_path / "step.toml"
    path.write_text(
        """
topology = "switch:4"
workload = "resnet50"
strategies = ["nccl+ddp=1000", "nccl+ddp=5"]
[step]
batch = 4
time = "200 ms"
""",
        "utf-8",
    )
    ranked = json.loads(simreduce("run", path, "--json").out)["candidates"]
    assert ranked[0]["strategy"] == "nccl+ddp=1000"
    found = simreduce("export", "pytorch", path)
    assert found.err.endswith("nccl+ddp=5: advised for PyTorch by step\n")
    assert '"bucket_cap_mb": 5,' in found.out


@pytest.mark.slow
def test_a_scenario_without_strategies_gives_what_tune_finds(simreduce, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'topology = "switch:4"\nworkload = "alexnet"\n[step]\nbatch = 8\ntime = "4 ms"\n', "utf-8"
    )
    for target in ("pytorch", "nccl"):
        out = [str(tmp_path / f"{target}{name}") for name in "ab"]
        simreduce("tune", path, "--target", target, "--workers", "1", "--out", out[0])
        found = simreduce("export", target, path, "--workers", "1", "--out", out[1])
        assert found.status == 0
        assert f": what simreduce tune own --target {target} advises\n" in found.err
        written = [{each.name: each.read_text() for each in Path(o).iterdir()} for o in out]
        assert written[0] == written[1] != {}
    older = simreduce("export", "pytorch", path, "--workers", "1", "--for", "fsdp=1")
    assert ": what a search for fsdp=1 advises\n" in older.err
    with_method = simreduce("export", "horovod", path, "--method", "fsdp")
    assert "--method fsdp: the step has ddp" in with_method.err


def test_a_method_that_a_target_lacks_is_refused_with_the_reason(simreduce, tmp_path):
    path = tmp_path / "step.toml"
    path.write_text(
        """
topology = "switch:4"
workload = "gpt2"
strategies = ["nccl+ddp", "nccl"]
[step]
batch = 4
time = "10 ms"
method = ["ddp", "fsdp"]
""",
        "utf-8",
    )
    refused = simreduce("export", "deepspeed", path, "--method", "fsdp")
    assert refused.status == 2
    assert refused.err.splitlines() == [
        "simreduce: step: DeepSpeed has no setting for any of its strategies",
        "simreduce: nccl+ddp: fsdp reduces a unit at a time; leave out +ddp",
        "simreduce: nccl: DeepSpeed's ZeRO has no fsdp; it has zero1, zero2 and zero3",
    ]
    assert "fsdp, nccl for gpt2" in simreduce("export", "pytorch", path, "--method", "fsdp").out
    refused = simreduce("export", "pytorch", "switch:4", "--method", "fsdp")
    assert refused.err == ("simreduce: --method fsdp: only a scenario with a [step] has methods\n")


def test_faults_name_what_is_meant(simreduce, scenario, tmp_path):
    found = simreduce("export", "pytroch", "switch:4", "--out", tmp_path / "no" / "such")
    assert found.status == 2
    assert "unknown target 'pytroch' (did you mean 'pytorch'?)" in found.err
    assert "is in no folder that is there" in found.err
    found = simreduce("export", "horovod", "switch:4", "--for", "horovod=0.28", "--gpus", "x")
    assert "--for horovod=0.28: Horovod has files for one version, whichever you name" in found.err
    assert "--gpus" in found.err
    found = simreduce("export", "pytorch", scenario, "--algo", "ring", "-b", "1M")
    assert "-b: " in found.err
    found = simreduce("export", "pytorch", scenario, "--algo", "ring")
    assert found.err.splitlines()[-1] == "simreduce: ring: the nearest setting is that of nccl+ddp"
    assert found.out == ""


def test_verify_proves_files_and_finds_what_is_wrong(simreduce, tmp_path):
    good, bad = tmp_path / "good.xml", tmp_path / "bad.xml"
    text = simreduce("export", "msccl", "switch:3", "--algo", "ring").out
    good.write_text(text, "utf-8")
    bad.write_text(text.replace('type="rrcs"', 'type="rcs"', 1), "utf-8")

    proved = simreduce("verify", good)
    assert proved.out == (f"{good}: all_reduce of 3 GPUs, 3 chunks, 1 channel, 15 steps: proved\n")
    both = simreduce("verify", good, bad, "--json")
    assert both.status == 1
    assert [row["proved"] for row in json.loads(both.out)["files"]] == [True, False]
    wrong = simreduce("verify", bad)
    assert wrong.status == 1
    assert wrong.out.splitlines()[0].startswith(f"WRONG {bad}: gpu 0 ends with nothing of rank 0")
    assert (
        "--algo: files are proved by themselves" in simreduce("verify", good, "--algo", "ring").err
    )
    bad.write_text("<!DOCTYPE a><algo/>", "utf-8")
    assert "a document type" in simreduce("verify", bad).err


TOO_LARGE = """
topology = "dgx1v"
workload = "gpt2-xl"
[step]
batch = 2
rate = "40 TFLOP/s"
activations = "1 GB"
"""


@pytest.mark.parametrize(
    ("strategies", "more"),
    [('["nccl+ddp"]', ' and strategies = ["nccl"]'), ('["nccl", "nccl+ddp"]', "")],
)
def test_what_no_gpu_has_memory_for_is_not_written(simreduce, tmp_path, strategies, more):
    path = tmp_path / "large.toml"
    path.write_text(f"strategies = {strategies}\n{TOO_LARGE}", "utf-8")

    refused = simreduce("export", "pytorch", path)
    assert (refused.status, refused.out) == (2, "")
    has = "and a GPU has 16.95 GB, 76% too much; 1 GB of activations (given)"
    near = f'method = "fsdp"{more} (7.064 GB a GPU)'
    assert refused.err.splitlines()[-2:] == [
        f"simreduce: large: ddp needs 29.82 GB, {has}",
        f"simreduce: large: the nearest that fits: {near}",
    ]


def test_half_of_the_batch_is_the_nearest_that_fits_where_nothing_shards(simreduce, tmp_path):
    path = tmp_path / "large.toml"
    text = TOO_LARGE.replace("gpt2-xl", "gpt2").replace("1 GB", "20 GB")
    path.write_text(f'strategies = ["nccl+fusion"]\n{text}', "utf-8")

    refused = simreduce("export", "horovod", path)
    assert 2 == refused.status
    assert "the nearest that fits: batch = 1 and accumulate = 2 (14.43 GB a GPU)" in refused.err
    smaller = text.replace("batch = 2", "batch = 1\naccumulate = 2").replace("20 GB", "10 GB")
    path.write_text(f'strategies = ["nccl+fusion"]\n{smaller}', "utf-8")
    assert simreduce("export", "horovod", path).status == 0


def test_what_is_named_is_written_with_a_warning(simreduce, tmp_path):
    path = tmp_path / "large.toml"
    path.write_text(f'strategies = ["nccl+ddp"]\n{TOO_LARGE}', "utf-8")
    written = simreduce("export", "pytorch", path, "--algo", "nccl+ddp")

    assert written.status == 0
    assert "gradient_as_bucket_view" in written.out
    assert "warning: large: ddp needs 29.82 GB, and a GPU has 16.95 GB" in written.err


def test_a_method_that_is_named_is_written_and_the_advice_is_said(simreduce, tmp_path):
    """FSDP is faster, but not by more than the copies that are not simulated."""
    path = tmp_path / "step.toml"
    path.write_text(
        """
topology = "dgx-h100x2"
workload = "gpt2"
strategies = ["nccl", "nccl+ddp"]
[step]
batch = 4
time = "10 ms"
method = ["ddp", "fsdp"]
""",
        "utf-8",
    )
    found = simreduce("export", "pytorch", path, "--method", "fsdp")
    assert "fully_shard(unit" in found.out
    assert (
        "fsdp, nccl: the fastest by --method fsdp; step advises for PyTorch: Keep PyTorch's"
        " defaults (DDP): a step takes " in found.err
    )


def test_of_vllm_it_is_the_fastest_all_reduce_that_vllm_has(simreduce):
    """NCCL's symmetric kernels for the smallest and the largest, its own between."""
    for size, name, line in (
        ("16K", "symmetric", "VLLM_USE_NCCL_SYMM_MEM=1"),
        ("64K", "oneshot", "VLLM_CUSTOM_ALLREDUCE_ALGO=1stage"),
        ("4M", "symmetric", "NCCL_NVLS_ENABLE=1"),
    ):
        status, out, err = simreduce("export", "vllm", "dgx-h100", "-b", size, "-d", "bfloat16")
        assert status == 0
        assert err.startswith(f"{name}: the fastest that vLLM has here (nccl ")
        assert line in out.splitlines()
    machine = "export", "vllm", "dgx-h100", "-d", "bfloat16"
    out = simreduce(*machine, "--algo", "multimem", "-b", "1M").out
    assert "VLLM_ALLREDUCE_USE_SYMM_MEM=1\nVLLM_USE_NCCL_SYMM_MEM=0\n" in out
    assert "--disable-custom-all-reduce" in out
    assert simreduce("export", "vllm", "dgx1v", "-b", "1M").out.startswith("# simreduce")


@pytest.mark.parametrize(
    ("gpus", "size", "says"),
    [
        (4, "16K", "up to 16 KiB and from 512 KiB on (before pull 33839, 2026-02: from 2 MiB on)"),
        (4, "17K", ""),
        (4, "511K", ""),
        (4, "512K", "from 512 KiB on"),
        (8, "128K", "up to 16 KiB and from 128 KiB on (before pull 33839, 2026-02: from 1 MiB on)"),
        (8, "64K", ""),
    ],
)
def test_vllm_leaves_sizes_between_to_its_own_kernels(simreduce, gpus, size, says):
    """With NCCL's symmetric memory, by version."""
    words = "export", "vllm", "dgx-h100", "-d", "bfloat16", "-g", str(gpus), "-b", size
    status, out, err = simreduce(*words, "--algo", "symmetric")
    fastest = simreduce(*words).err

    if says:
        assert (0, "") == (status, err)
        assert f"# vLLM runs it on {gpus} GPUs for tensors " in out
        assert says in out
    else:
        assert (2, "") == (status, out)
        assert f"vLLM has symmetric on {gpus} GPUs up to 16 KiB and from " in err
    assert bool(says) == (", symmetric " in fastest)


def test_what_is_nominal_is_said_beside_times_that_are_exported(simreduce):
    said = "times of oneshot, twoshot, multimem, symmetric are nominal: kernels have B300's"
    words = "vllm", "hgx-b200", "-d", "bfloat16", "-b", "4K"

    assert said in simreduce("export", *words).err
    assert "times of oneshot are nominal" in simreduce("export", *words, "--algo", "oneshot").err
    assert "nominal" not in simreduce("export", "vllm", "dgx-h100", "-b", "4K").err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ("-b", "16M", "--algo", "twoshot"),
            "twoshot up to 256 KiB on 8 GPUs, and a tensor has 16",
        ),
        (("-b", "1M", "--algo", "multimem", "-d", "float"), "multimem for bfloat16 only"),
        (("-b", "1K", "--algo", "oneshot", "-g", "3"), "oneshot for so many GPUs: 2, 4, 6, 8"),
        (
            ("-b", "1K", "--algo", "symmetric", "-g", "2"),
            "symmetric for so many GPUs: 4, 8 to 72",
        ),
        (("-b", "1M", "--algo", "ring"), "vLLM has nccl, oneshot, twoshot, multimem, symmetric"),
    ],
)
def test_what_vllm_does_not_have_is_refused(simreduce, options, reason):
    status, out, err = simreduce("export", "vllm", "dgx-h100", *options)
    assert (2, "") == (status, out)
    assert reason in err


@pytest.mark.parametrize(
    ("target", "machine", "options", "said"),
    [
        ("tensorrt_llm", "dgx-h100", ("-b", "64K"), "allreduce_strategy: ONESHOT"),
        ("tensorrt_llm", "dgx-h100", ("-b", "64K", "--algo", "twoshot"), "TWOSHOT"),
        ("tensorrt_llm", "dgx-h100", ("-b", "16M"), "allreduce_strategy: NCCL_SYMMETRIC"),
        ("flashinfer", "hgx-b200", ("-b", "64K"), "use_oneshot=True"),
        ("flashinfer", "hgx-b200", ("-b", "16M"), "use_oneshot=False"),
    ],
)
def test_other_libraries_have_settings_of_the_fastest(simreduce, target, machine, options, said):
    status, out, _ = simreduce("export", target, machine, *options)
    assert status == 0
    assert said in out


@pytest.mark.parametrize(
    ("target", "machine", "options", "reason"),
    [
        ("tensorrt_llm", "dgx-h100", ("-b", "16M", "--algo", "oneshot"), "up to 8000000 B"),
        ("tensorrt_llm", "dgx-h100", ("-b", "1M", "--algo", "oneshot", "-g", "6"), ": 2, 4, 8"),
        ("tensorrt_llm", "mi300x", ("-b", "1M", "--algo", "oneshot"), "runs on NVIDIA's GPUs"),
        ("flashinfer", "dgx-h100", ("-b", "1M", "--algo", "nccl"), "has twoshot, oneshot, one"),
    ],
)
def test_what_other_libraries_do_not_have_is_refused(simreduce, target, machine, options, reason):
    status, out, err = simreduce("export", target, machine, *options)
    assert (2, "") == (status, out)
    assert reason in err
