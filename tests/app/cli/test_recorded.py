"""Recorded jobs in place of scenarios."""

from __future__ import annotations

import json

import pytest

from tests.app.cli.command import REPOSITORY

DDP = {
    "world_size": 4, "bucket_sizes": "1048576, 26214400, 27262976, 8388608",
    "avg_forward_compute_time": 4_000_000, "avg_backward_compute_time": 8_000_000,
}  # fmt: skip
MACHINE = ("--topology", "pcie-single-root-4", "--workers", "1")


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "ddp.json"
    path.write_text(json.dumps(DDP))
    return path


def test_step_and_replay_agree(simreduce, record):
    """All buckets as they were recorded, on the same machine."""
    done = simreduce("step", record, *MACHINE, "--algo", "nccl", "--batch", "64", "--json")
    step = json.loads(done.out)
    replay = json.loads(simreduce("replay", record, *MACHINE[:2], "--json").out)

    assert step["step_time_us"] * 1e-6 == pytest.approx(replay["seconds"])
    assert (step["compute_us"], step["batch"]) == (pytest.approx(12e3), 64)
    assert step["record"][0].startswith("gradients are its buckets: none below 25 MiB can be")


def test_tune_keeps_or_joins_buckets(simreduce, record):
    """And says why it tries no smaller ones."""
    done = simreduce("tune", record, *MACHINE)
    document = json.loads(simreduce("tune", record, *MACHINE, "--json").out)
    texts = {row["strategy"] for row in document["rows"]}

    assert done.status == 0
    assert "# record       gradients are its buckets: none below 25 MiB can be tried" in done.out
    assert document["default"]["strategy"] == "nccl+ddp"
    assert texts <= {"nccl+ddp", "nccl+ddp=25", "nccl+ddp=60"}
    assert document["best"]["time_us"] >= 12e3


def test_gradients_within_buckets_make_smaller_ones(simreduce, record, tmp_path):
    """They are given beside the record."""
    path = tmp_path / "gradients.csv"
    path.write_text("name,elements\n" + "".join(f"g{i},524288\n" for i in range(30)))
    done = simreduce(
        "step", record, *MACHINE, "--workload", path, "--algo", "nccl+ddp=4,nccl+ddp=8", "--json"
    )
    document = json.loads(done.out)

    today = {"nccl+ddp"}
    found = {row["strategy"] for row in document["candidates"]}
    assert {"nccl+ddp=4", "nccl+ddp=8"} == found - today
    assert "record" not in document or "none below" not in " ".join(document["record"])


def test_other_commands_take_records_too(simreduce, record, tmp_path):
    """A report, a ranking, a plan closely, and settings to paste."""
    page = tmp_path / "page.html"
    assert simreduce("report", record, *MACHINE, "-o", page, "--algo", "nccl").status == 0
    assert "What the record does not say" in page.read_text("utf-8")
    for command in (("run",), ("explain",), ("export", "nccl")):
        assert simreduce(*command, record, *MACHINE).status == 0
    faulty = simreduce("explain", "pcie-single-root-4", "--topology", "dgx1v")
    assert (faulty.status, faulty.out) == (2, "")
    assert "--topology: pcie-single-root-4 is a machine" in faulty.err


def test_results_in_json_are_still_results(simreduce, record, tmp_path):
    """A document of --json is none of a record."""
    found, page = tmp_path / "step.json", tmp_path / "page.html"
    found.write_text(simreduce("step", record, *MACHINE, "--json").out)

    assert simreduce("report", found, "-o", page).status == 0
    assert "What the record does not say" in page.read_text("utf-8")


@pytest.mark.parametrize("command", ["tune", "step", "run", "report", "export"])
def test_a_machine_with_fewer_gpus_than_ranks_is_refused(simreduce, command, tmp_path):
    """With both numbers; more GPUs are another machine for the same job, and a note says so."""
    path = tmp_path / "ddp.json"
    path.write_text(json.dumps({**DDP, "world_size": 16}))
    target = ["nccl"] * (command == "export")
    done = simreduce(command, *target, path, "--topology", "dgx1v", "--workers", "1")

    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "simreduce: --topology: dgx1v has 8 GPUs, and ddp.json was recorded with 16 ranks"
        " (world_size)\n"
    )


def test_a_scenario_names_its_key_where_gpus_are_too_few(simreduce, record, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        f'topology = "switch:2"\nworkload = "{record.name}"\nstrategies = ["nccl"]\n'
        f'[step]\nbatch = 1\nprofile = "{record.name}"\n'
    )
    refused = simreduce("step", path)
    assert refused.status == 2
    assert (
        "own.toml: topology: switch:2 has 2 GPUs, and ddp.json was recorded with 4" in refused.err
    )


def test_a_machine_with_more_gpus_than_ranks_is_noted(simreduce, record):
    done = simreduce("step", record, "--topology", "dgx1v", "--algo", "nccl")
    assert "the job had 4 ranks, and this machine has 8 GPUs" in done.out


@pytest.mark.parametrize("command", ["tune", "step", "run", "report"])
def test_the_machine_of_a_record_must_be_named(simreduce, command, record):
    """With all other faults."""
    done = simreduce(command, record, "--calibration", "no-such")

    assert done.status == 2
    assert "--topology: missing; a shipped machine" in done.err
    assert "no-such" in done.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": 1, "b": [2]}', "neither 'traceEvents' of the PyTorch profiler nor 'bucket_sizes'"),
        ('{"a": 1, "b": [2]}', "it has the keys 'a', 'b'"),
        ("[1, 2, 3]", "it has a list of 3"),
        ("{}", "it has no key"),
        ("{", "is no JSON"),
        ('{"world_size": 1, "bucket_sizes": "x"}', "world_size: must be a whole number from 2"),
    ],
)
@pytest.mark.parametrize("command", ["tune", "step"])
def test_json_that_is_no_record_is_named(simreduce, tmp_path, command, content, words):
    """With what is read, and what is there."""
    path = tmp_path / "other.json"
    path.write_text(content)
    done = simreduce(command, path, *MACHINE)

    assert done.status == 2
    assert words in done.err
    assert "TOML" not in done.err


def test_a_record_without_times_has_no_step(simreduce, tmp_path):
    """Its reductions have a time all the same."""
    path = tmp_path / "ddp.json"
    path.write_text('{"world_size": 4, "bucket_sizes": "1048576, 26214400"}')

    assert simreduce("tune", path, *MACHINE).status == 0
    done = simreduce("step", path, *MACHINE)
    assert done.status == 2
    assert "has no times of compute" in done.err


def test_options_replace_what_a_scenario_says(simreduce):
    """Its machine and its gradients."""
    done = simreduce(
        "run", "dgx1v-resnet50", *MACHINE, "--workload", "bytes:1M", "--algo", "nccl", "--json"
    )
    document = json.loads(done.out)

    assert (document["topology"], document["size_bytes"]) == ("pcie-single-root-4", 1 << 20)


def test_the_example_of_the_pages_is_tuned(simreduce):
    """On another machine than the page's."""
    example = REPOSITORY / "docs" / "examples" / "ddp-resnet50.json"
    done = simreduce("tune", example, "--topology", "dgx-a100", "--workers", "1", "--json")

    assert json.loads(done.out)["best"]["time_us"] >= 62e3


def test_machines_are_compared_for_a_recorded_job(simreduce, record, tmp_path):
    """A sweep names them; without one, each cell says what is missing."""
    over = ("--over", "strategy=nccl,nccl+ddp=10", "--workers", "1", "--json")
    done = simreduce(
        "sweep", record, "--over", "machine=dgx1v,dgx1p", *over, "--db", tmp_path / "w.db"
    )
    rows = json.loads(done.out)["rows"]

    assert {"dgx1v", "dgx1p"} == {row["machine"] for row in rows if row["seconds"] is not None}
    assert {"nccl"} == {row["strategy"] for row in rows if row["seconds"] is not None}
    done = simreduce("sweep", record, "--over", "nodes=1,2", *over, "--db", tmp_path / "x.db")
    assert "topology: is missing, and no machine is set" in done.out
