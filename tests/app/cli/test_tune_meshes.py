"""`simreduce tune` of a scenario with a `mesh`: what a program can run, and its files."""

from __future__ import annotations

import json

import pytest

SCENARIO = """
topology = "dgx-a100"
workload = "transformer:layers=8,hidden=1024,heads=16,vocab=51200,seq=512"
[step]
mesh = "auto"
global_batch = 16
"""


@pytest.fixture
def scenario(tmp_path):
    """Writes a scenario, with keys before those of its own."""

    def write(more="", mesh='"auto"'):
        path = tmp_path / "small.toml"
        path.write_text(more + SCENARIO.replace('"auto"', mesh), "utf-8")
        return path

    return write


@pytest.mark.parametrize("target", ["megatron", "nemo", "torchtitan", "deepspeed"])
def test_tune_and_step_agree_to_the_bit(simreduce, scenario, target):
    """`step` with the framework in the scenario; and both with what export writes."""
    path = scenario()
    status, out, err = simreduce("tune", path, "--target", target, "--json")
    tuned = json.loads(out)
    exported = simreduce("export", target, path)
    path = scenario(f'framework = "{target}"')
    stepped = json.loads(simreduce("step", path, "--json").out)

    assert (0, "") == (status, err)
    assert "tune-meshes" in tuned["schema"]
    assert target == tuned["framework"] == stepped["framework"]
    assert tuned["candidates"] == stepped["candidates"]
    assert tuned["bounded"] == stepped["bounded"]
    for name, text in tuned["files"].items():
        assert text in exported.out, name


def test_each_program_gets_the_best_of_what_it_can_run(simreduce, scenario):
    """DeepSpeed has no stages that interleave: the search is among its own meshes, so that others
    do not exclude them.
    """
    path = scenario()
    others = json.loads(simreduce("step", path, "--json").out)
    found = json.loads(simreduce("tune", path, "--target", "deepspeed", "--json").out)
    able = {row["schedule"] for row in found["candidates"] if "pp=" in row["mesh"]}

    assert able <= {"1f1b"}
    assert others["candidates"][0]["time_us"] <= found["candidates"][0]["time_us"]
    assert any("no schedule interleaved" in why for why in found["refused"].values())
    stage = {"distributed": 1, "fsdp": 3}[found["candidates"][0]["optimizer"]]
    assert stage == json.loads(found["files"]["ds_config.json"])["zero_optimization"]["stage"]


def test_the_text_ends_with_what_to_paste(simreduce, scenario):
    """The mesh, then Megatron-LM's arguments unless another program is named."""
    status, out, _ = simreduce("tune", scenario())

    assert 0 == status
    assert "# framework    Megatron-LM, what it can run" in out
    assert out.index("Train with ") < out.index("# megatron.args\n--tensor-model-parallel-size ")


def test_files_go_to_a_folder(simreduce, scenario, tmp_path):
    """Their places are the last lines; the framework of the scenario is the target."""
    folder = tmp_path / "found"
    status, out, _ = simreduce("tune", scenario('framework = "torchtitan"'), "--out", folder)

    assert 0 == status
    assert str(folder / "torchtitan.args") == out.splitlines()[-1]
    assert "tensor_parallel_degree" in (folder / "torchtitan.args").read_text("utf-8")


@pytest.mark.parametrize(
    ("version", "file", "setting"),
    [
        ("torchtitan=0.2", "torchtitan.toml", "tensor_parallel_degree = 2"),
        ("torchtitan=0.3", "torchtitan.args", "--training.seq_len 512"),
        ("torchtitan=main", "torchtitan.args", "--training.max_context_length 512"),
    ],
)
def test_files_are_for_a_version(simreduce, scenario, tmp_path, version, file, setting):
    path, folder = scenario(mesh='"tp=2"'), tmp_path / "found"
    status, _, err = simreduce("export", "torchtitan", path, "--for", version, "--out", folder)

    assert 0 == status
    assert "the fastest that torchtitan can run" in err
    assert setting in (folder / file).read_text("utf-8")


def test_a_version_that_is_not_known_is_refused_with_those_that_are(simreduce, scenario):
    refused = simreduce("export", "torchtitan", scenario(), "--for", "torchtitan=0.1")

    assert (2, "") == (refused.status, refused.out)
    assert "has files for torchtitan=0.3, torchtitan=0.2, torchtitan=main\n" in refused.err


def test_the_document_has_a_page(simreduce, scenario, tmp_path):
    """With the files, and the meshes."""
    document, page = tmp_path / "tuned.json", tmp_path / "tuned.html"
    document.write_text(simreduce("tune", scenario(), "--json").out, "utf-8")
    status, _, err = simreduce("report", document, "-o", page)
    text = page.read_text("utf-8")

    assert (0, "") == (status, err)
    assert "What to set" in text
    assert "--tensor-model-parallel-size" in text
    assert "Train with " in text


def test_faults_are_all_of_them_and_exit_with_2(simreduce, scenario):
    path = scenario('framework = "horovod"\n', mesh='["tp=3"]')
    status, out, err = simreduce(
        "tune", path, "--fp16", "--worth", "1%", "--slow", "gpu0=2", "--objective", "time",
    )  # fmt: skip

    assert (2, "") == (status, out)
    for option in ("fp16", "worth", "slow"):
        assert f"--{option}: a scenario with step.mesh does not use it" in err
    assert "--objective: a scenario with step.mesh is about a step" in err
    assert "framework: horovod: takes no mesh; megatron, nemo, torchtitan, deepspeed do" in err
    assert "tp x cp x pp is 3, and the machine has 8" in err


def test_a_target_is_named_by_the_nearest(simreduce, scenario):
    status, out, err = simreduce("tune", scenario(), "--target", "megatorn")

    assert (2, "") == (status, out)
    assert "--target: unknown framework 'megatorn' (did you mean 'megatron'?)" in err


def test_what_a_program_cannot_run_exits_with_2(simreduce, scenario):
    path = scenario(mesh='["tp=2,cp=2,pp=2"]')
    status, out, err = simreduce("tune", path, "--target", "deepspeed")

    assert (2, "") == (status, out)
    assert "small: Megatron-DeepSpeed has no experts and no context parallel ranks" in err


def test_what_does_not_fit_has_no_files(simreduce, tmp_path):
    path = tmp_path / "large.toml"
    path.write_text(
        'topology = "dgx-a100"\nworkload = "gpt-3-175b"\n[step]\nmesh = ["tp=8"]\n'
        "global_batch = 8\n", "utf-8",
    )  # fmt: skip
    status, out, _ = simreduce("tune", path, "--json")

    assert 0 == status
    assert {} == json.loads(out)["files"]
    assert "No mesh fits the memory of a GPU" in simreduce("tune", path).out
    assert "needs more memory than a GPU has" in simreduce("export", "megatron", path).err


def test_a_framework_of_meshes_is_for_meshes(simreduce, tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text('topology = "dgx-a100"\nworkload = "alexnet"\nframework = "nemo"\n', "utf-8")
    status, out, err = simreduce("run", path)

    assert (2, "") == (status, out)
    assert "framework: nemo is for a step with a mesh; known are pytorch, horovod" in err


def test_options_of_nccl_change_meshes(simreduce, scenario):
    """As they do for steps; so do the orders of GPUs."""
    path = scenario(mesh='["dp=8"]')
    plain, changed = (
        json.loads(simreduce("step", path, *more, "--json").out)["candidates"][0]["time_us"]
        for more in ((), ("--nccl", "NCCL_PROTO=LL"))
    )

    assert changed != plain
