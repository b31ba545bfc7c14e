"""`simreduce step` of a scenario with a `mesh`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simreduce.engine.setup import Setup
from simreduce.study.scenario_files import load_meshes
from simreduce.study.tune.meshes import rank_meshes
from simreduce.training.executions import COLLECTIVE, Execution
from simreduce.training.executions.reading import read_executions
from simreduce.training.recorded import replay_execution

SCENARIO = """
title = "A small decoder"
topology = "dgx-a100"
workload = "transformer:layers=8,hidden=1024,heads=16,vocab=51200,seq=512"
[step]
mesh = ["tp=2,pp=2", "dp=8"]
global_batch = 16
[step.pipeline]
virtual = 1
"""


@pytest.fixture
def scenario(tmp_path):
    """Writes a scenario with other words in place of some of its own."""

    def write(changes=()):
        text = SCENARIO
        for old, new in dict(changes).items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "small.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def test_meshes_are_ranked(simreduce, scenario):
    """Fastest first, with what a step takes, the memory of each, and an answer."""
    status, out, err = simreduce("step", scenario())

    assert (0, "") == (status, err)
    assert out.index("1  dp=8") < out.index("2  tp=2,pp=2,dp=2")
    assert "Train with dp=8, micro batches of 1: a step takes" in out
    assert "# step         16 sequences of 512 tokens" in out


def test_one_document_with_json(simreduce, scenario):
    """Which its schema describes; all of a step's time is accounted for."""
    status, out, err = simreduce("step", scenario(), "--json")
    document = json.loads(out)

    assert (0, "") == (status, err)
    assert "step-meshes" in document["schema"]
    assert ["dp=8", "tp=2,pp=2,dp=2"] == [row["mesh"] for row in document["candidates"]]
    for row in document["candidates"]:
        assert sum(row["spent_us"].values()) == pytest.approx(row["time_us"], rel=1e-6)
        assert row["tokens_per_second"] == pytest.approx(16 * 512 / row["time_us"] * 1e6, rel=1e-6)
        assert row["peak_bytes"] == max(each["peak_bytes"] for each in row["held"])
        assert row["fits"]
        for each in row["held"]:
            parts = ("parameters", "gradients", "optimizer", "activations")
            assert each["peak_bytes"] == sum(each[f"{part}_bytes"] for part in parts)
    assert [1, 2] == [len(row["held"]) for row in document["candidates"]]


def test_details_show_the_grid(simreduce, scenario):
    """Who does what when, and what each stage holds."""
    path = scenario({', "dp=8"': ""})
    status, out, _ = simreduce("step", path, "--details")
    lines = out.splitlines()

    assert 0 == status
    assert any(line.startswith("stage  1 FF..BBFBBFBB") for line in lines)
    assert any(line.startswith("stage  2 .FBBFBBFBB") for line in lines)


def test_what_does_not_fit_is_marked_and_comes_last(simreduce, scenario):
    """A model too large for one GPU: the faster mesh is not the advice."""
    path = scenario({
        "layers=8,hidden=1024": "layers=48,hidden=2048",
        'mesh = ["tp=2,pp=2", "dp=8"': 'optimizer = "replicated"\nmesh = ["dp=8", "tp=8"',
    })  # fmt: skip
    status, out, _ = simreduce("step", path, "--json")
    document = json.loads(out)

    assert 0 == status
    assert [("tp=8", True), ("dp=8", False)] == [
        (row["mesh"], row["fits"]) for row in document["candidates"]
    ]
    text = simreduce("step", path).out
    assert "2  dp=8*" in text
    assert "1 row marked *: more memory than the 42.3 GB that a GPU has" in text


def test_a_mesh_that_cannot_be_is_named_beside_the_others(simreduce, scenario):
    """With its reasons; the others are ranked."""
    path = scenario({'"dp=8"': '"pp=8,tp=1", "cp=8,ep=1", "ep=2"'})
    status, out, _ = simreduce("step", path)

    assert 0 == status
    assert "ep: the model has no experts for 2 ways; leave ep out" in out


def test_faults_are_all_of_them_and_exit_with_2(simreduce, scenario):
    """Keys with the nearest spelling, and options that have no use."""
    path = scenario({"global_batch": "global_bach", "virtual": "virtul"})
    status, out, err = simreduce("step", path, "--algo", "ring", "--batch", "3")

    assert (2, "") == (status, out)
    assert "--algo: a scenario with step.mesh does not use it" in err
    assert "--batch: a scenario with step.mesh does not use it" in err
    assert "step.global_bach: unknown key (did you mean 'global_batch'?)" in err
    assert "step.pipeline.virtul: unknown key (did you mean 'virtual'?)" in err


def test_meshes_that_do_not_fill_the_machine_exit_with_2(simreduce, scenario):
    """With those that do."""
    status, out, err = simreduce("step", scenario({'"dp=8"': '"tp=3"'}))

    assert (2, "") == (status, out)
    assert "tp x cp x pp is 3, and the machine has 8; products of 2 or 4 divide them" in err


def test_a_schedule_of_a_file(simreduce, scenario, tmp_path):
    """Beside the scenario; one that cannot end prints the grid, and exits with 2."""
    path = scenario({', "dp=8"': "", "global_batch = 16": "global_batch = 4",
                       "virtual = 1": 'schedule = "mine.csv"'})  # fmt: skip
    (tmp_path / "mine.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "utf-8")
    status, out, _ = simreduce("step", path)

    assert 0 == status
    assert "mine.csv: a step takes" in out
    (tmp_path / "mine.csv").write_text("0F0,0B1,0F1,0B0\n1F0,1F1,1B0,1B1\n", "utf-8")
    status, out, err = simreduce("step", path)
    assert (2, "") == (status, out)
    assert "mine.csv: its ranks wait for each other for ever:\n  rank 0: 0F0 | waits" in err


def _in_microseconds(execution: Execution) -> Execution:
    """With times of compute as a Chakra trace has them."""
    return replace(execution, nodes={
        rank: tuple(
            n._replace(seconds=n.seconds and round(n.seconds * 1e6) * 1e-6) for n in nodes
        )
        for rank, nodes in execution.nodes.items()
    })  # fmt: skip


@pytest.mark.slow
def test_chakra_traces_of_all_ranks(simreduce, scenario, tmp_path):
    """A file for each, and the ranks of groups: read again, they are the same nodes, and their
    replay on a machine takes as long to the last bit.
    """
    path, folder = scenario({', "dp=8"': ""}), tmp_path / "traces"
    status, out, _ = simreduce("step", path, "--chakra", folder)
    traces = [str(folder / f"step.{rank}.et") for rank in range(8)]
    groups = {
        name: tuple(ranks)
        for name, ranks in json.loads((folder / "groups.json").read_text("utf-8")).items()
    }
    ours = _in_microseconds(rank_meshes(load_meshes(str(path))).case.write())
    read = read_executions(traces, groups)

    assert 0 == status
    assert f"{folder}: step.0.et to step.7.et, and groups.json" == out.splitlines()[-1]
    files = {path.name for path in folder.iterdir()}
    assert {"groups.json", *(f"step.{rank}.et" for rank in range(8))} == files
    pairs = (*(((i, i + 1)) for i in range(0, 8, 2)), (0, 2), (1, 3), (4, 6), (5, 7))
    assert {*pairs, *((i, i + 4) for i in range(4))} == set(groups.values())  # tp, dp, both ends
    assert {*range(8)} == ours.nodes.keys() == read.nodes.keys()
    for rank, nodes in ours.nodes.items():
        for old, new in zip(nodes, read.nodes[rank], strict=True):
            same = ("name", "kind", "collective", "nbytes", "peer", "tag")
            assert [getattr(old, each) for each in same] == [getattr(new, each) for each in same]
            assert sorted(old.after) == list(new.after)
            assert old.kind != COLLECTIVE or old.group == new.group
    setup = Setup("dgx-a100", "nccl")
    first, second = (replay_execution(each, setup, "nccl") for each in (ours, read))
    assert first.seconds == second.seconds
    assert len(first.ran) == len(second.ran)


@pytest.mark.slow
def test_a_replay_takes_about_as_long_as_the_step(simreduce, scenario, tmp_path):
    """Microseconds are rounded, a replay hides less of short calls behind the host, and loses
    nothing beside collectives: 2.7 % in all.
    """
    path = scenario({', "dp=8"': ""})
    step = json.loads(simreduce("step", path, "--chakra", tmp_path, "--json").out)
    traces = [tmp_path / f"step.{rank}.et" for rank in range(8)]
    options = ("--groups", tmp_path / "groups.json", "--topology", "dgx-a100", "--json")
    replayed = json.loads(simreduce("replay", *traces, *options).out)

    assert replayed["seconds"] == pytest.approx(step["candidates"][0]["time_us"] / 1e6, rel=0.028)


def test_steps_without_a_mesh_are_written_as_chakra_too(simreduce, tmp_path):
    """Replayed, they take as long but for what kernels lose and copies into buckets."""
    where = tmp_path / "traces"
    status, out, _ = simreduce(
        "step", "dgx-h100-gpt2-ddp", "--algo", "nccl+ddp", "--chakra", where, "--json"
    )
    step = json.loads(out[: out.rindex("}") + 1])["candidates"][0]
    traces = sorted(str(path) for path in where.glob("*.et"))
    groups = ("--groups", where / "groups.json")
    _, out, _ = simreduce("replay", *traces, *groups, "--topology", "dgx-h100", "--json")
    seconds = json.loads(out)["seconds"]

    assert (0, 8) == (status, len(traces))
    assert simreduce("replay", where, "--topology", "dgx-h100", "--json").out == out
    assert seconds == pytest.approx(
        (step["step_time_us"] - step["interference_us"]) / 1e6, rel=0.03
    )


def test_a_target_that_takes_no_mesh_is_told_once(simreduce, scenario):
    assert simreduce("export", "pytorch", scenario({})).err == (
        "simreduce: pytorch: takes no mesh; megatron, nemo, torchtitan, deepspeed do\n"
    )


def test_gpus_that_nobody_knows_are_told_with_those_that_are_known(simreduce, scenario, tmp_path):
    machine = simreduce("topo", "export", "dgx-a100").out.replace('"A100', '"H9000')
    (tmp_path / "h9000.toml").write_text(machine, "utf-8")
    _, _, err = simreduce("step", scenario({}), "--topology", tmp_path / "h9000.toml")
    assert "step.gpu: missing; the machine's GPUs (H9000" in err
    assert "are not known: name one of " in err


def test_kernels_of_some_models_are_not_known(simreduce, tmp_path):
    """With those that are, and what else to give."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'topology = "dgx-h100"\nworkload = "t5-base"\n[step]\nbatch = 8\ngpu = "H100"\n'
    )
    status, out, err = simreduce("step", path)

    assert (2, "") == (status, out)
    assert "step.gpu: t5-base is no model whose kernels are known: a decoder such as gpt2" in err


def test_where_no_chakra_traces_can_be_written(simreduce, tmp_path):
    """Into folders that are not there, and of updates of replicas."""
    folder = tmp_path / "no" / "no"
    status, out, err = simreduce("step", "step-p3x6-stragglers", "--chakra", folder)

    assert (2, "") == (status, out)
    assert "--chakra: updates of [replicas] are no step of every rank" in err
    assert "is in no folder that is there" in err


@pytest.mark.parametrize(
    ("machine", "mesh", "settings", "said"),
    [
        ("dgx-h100", "tp=8", "", []),
        (
            "dgx-h100",
            "tp=8",
            "symmetric = true",
            ["the symmetric all-gather's", "reduce-scatter's"],
        ),
        ("dgx-h100x16", "tp=8,dp=16", "", ["PAT's times"]),
        ("dgx-h100x16", "tp=8,dp=16", 'version = "2.22"', []),
    ],
)
def test_a_step_says_which_times_of_its_calls_are_nominal(
    simreduce, tmp_path, machine, mesh, settings, said
):
    """By what NCCL takes in each group: PAT where a group has a GPU of each machine."""
    path = tmp_path / "mesh.toml"
    path.write_text(
        f'topology = "{machine}"\nworkload = "transformer:layers=2,hidden=512,heads=8,vocab=1024,'
        f'seq=512"\n[step]\nmesh = ["{mesh}"]\nglobal_batch = 16\nsequence_parallel = true\n'
        f"[nccl]\n{settings}\n",
        "utf-8",
    )
    document = json.loads(simreduce("step", path, "--workers", "1", "--json").out)

    assert bool(said) == ("nominal" in document)
    assert all(words in document["nominal"] for words in said)


@pytest.mark.parametrize(
    ("overlap", "says"),
    [
        ("", "grad_reduce, param_gather, tp_grad (unless step.overlap says others)"),
        ('overlap = ["grad_reduce"]', "grad_reduce"),
        ("overlap = []", "nothing"),
    ],
)
def test_what_is_assumed_to_run_beside_compute_is_said(simreduce, tmp_path, overlap, says):
    path = tmp_path / "mesh.toml"
    path.write_text(
        'topology = "dgx-h100"\nworkload = "transformer:layers=2,hidden=512,heads=8,vocab=1024,'
        f'seq=512"\n[step]\nmesh = "dp=8"\nglobal_batch = 16\n{overlap}\n',
        "utf-8",
    )

    assert f"# overlap      beside compute: {says}\n" in simreduce("step", path).out
