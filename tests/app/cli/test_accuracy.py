"""`simreduce accuracy` and `simreduce calibrate --from-nccl-tests`."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from simreduce.report.accuracy import NCCL
from simreduce.study.accuracy import predict

LOG = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on  a device  0 [0x07] V100
#  Rank  1 Group  0 Pid  2 on  a device  1 [0x07] V100
#  Rank  2 Group  0 Pid  3 on  a device  2 [0x07] V100
#  Rank  3 Group  0 Pid  4 on  a device  3 [0x07] V100
#       size         count      type   redop    root     time   algbw   busbw #wrong
        1024           256     float     sum      -1     12.0    0.05    0.03      0
     1048576        262144     float     sum      -1     90.0   12.87    6.43      0
    33554432       8388608     float     sum      -1    500.0   12.87    6.43      0
"""


def test_one_machine(simreduce):
    result = simreduce("accuracy", "--only", "bessemer", "--json", "--workers", "1")
    document = json.loads(result.out)

    assert result.status == 0
    assert {"v100-pcie-4"} == {row["machine"] for row in document["machines"]}
    assert all(point["predicted_s"] for point in document["points"])


def test_tables_of_more_machines_are_said_to_be_left_out(simreduce):
    one = ("accuracy", "--workers", "1", "--only", "alps_gh200_ar_n1", "--tables", "all")
    two = (*one, "--only", "alps_gh200_ar_n2", "--most-machines", "1")

    assert "left out" not in simreduce(*one).out
    assert "# left out: 1 table of more than 1 machines" in simreduce(*two).out


def test_three_sizes_as_json(simreduce):
    result = simreduce(
        "accuracy", "--three-sizes", "--only", "bessemer", "--json", "--workers", "1"
    )
    points = json.loads(result.out)["points"]

    assert len(points) == 22  # of 25 sizes
    assert all(point["interval_low"] <= 1 <= point["interval_high"] for point in points)


def test_every_chapter_prints_its_table(simreduce):
    for chapter, head in (("step", "copy_to_cpu"), ("p2p", "dgx1-p100")):
        result = simreduce("accuracy", chapter)

        assert result.status == 0
        assert head in result.out


@pytest.mark.parametrize(
    ("options", "fault"),
    [(["nocl"], "did you mean 'nccl'"), (["--only", "nothing"], "no published table")],
)
def test_faults(simreduce, options, fault):
    result = simreduce("accuracy", *options)

    assert result.status == 2
    assert fault in result.err


def test_what_is_stopped_prints_the_tables_so_far(simreduce, monkeypatch):
    def stopped(tables, *_):
        yield from predict(tables[:1])
        os.kill(os.getpid(), signal.SIGTERM)
        yield from predict(tables[1:2])

    monkeypatch.setattr(
        import_module("simreduce.app.cli.accuracy"), "NCCL", replace(NCCL, predict=stopped)
    )
    status, out, _ = simreduce("accuracy", "--only", "tartan_nccl-v2_all_reduce", "--tables", "all")

    assert status == 130
    assert out.splitlines()[-1] == "# stopped after 1 of 3 tables"
    assert "1 table" in out


@pytest.mark.parametrize(("rows", "words"), [(1, "1 row determines"), (3, "3 rows determine")])
def test_few_rows_of_a_log_are_counted(simreduce, tmp_path, rows, words):
    lines = LOG.splitlines()
    (tmp_path / "a.log").write_text("\n".join(lines[: len(lines) - 3 + rows]), "utf-8")
    named = ("--topology", "v100-mesh-4", "--out", str(tmp_path / "mine.toml"))
    out = simreduce("calibrate", "--from-nccl-tests", str(tmp_path / "a.log"), *named).out

    assert f"# warning: {words} " in out


def test_constants_from_a_log(simreduce, tmp_path):
    log, out = tmp_path / "a.log", tmp_path / "mine.toml"
    log.write_text(LOG, "utf-8")
    result = simreduce(
        "calibrate", "--from-nccl-tests", str(log), "--topology", "v100-mesh-4", "--out", str(out)
    )

    assert result.status == 0
    assert "why not determined" in result.out
    assert "have standard errors above 50%" in result.out
    assert "misfit before: " in result.out
    bench = simreduce(
        "bench", "v100-mesh-4", "--algo", "nccl", "-b", "32M", "--calibration", str(out), "--json"
    )
    (row,) = json.loads(bench.out)["rows"]
    assert row["time_us"] == pytest.approx(500, rel=0.1)
    assert 300 < row["low_us"] < row["time_us"] < row["high_us"] < 800
    assert f"  {row['low_us'] / row['time_us']:.2f}  " in result.out  # as the fit said
    assert "fitted on" not in simreduce("bench", "v100-mesh-4", "--calibration", str(out)).out

    # On other machines nobody knows how far off these constants are, and the header says so.
    asked = ("--algo", "nccl", "-b", "32M", "--calibration", str(out))
    elsewhere = simreduce("bench", "a100-mesh-4", *asked)
    scenario = simreduce("run", "dgx1v-resnet50", "--algo", "nccl", *asked[-2:])
    said = re.compile(r"^# +.* fitted on v100-mesh-4 \([0-9a-f]{12}\), not on this", re.MULTILINE)
    assert said.search(elsewhere.out)
    assert said.search(scenario.out)
    (other,) = json.loads(simreduce("bench", "a100-mesh-4", *asked, "--json").out)["rows"]
    assert other["high_us"] / other["low_us"] > 1.2 * row["high_us"] / row["low_us"]


def test_logs_need_a_machine(simreduce, tmp_path):
    log = tmp_path / "a.log"
    log.write_text(LOG, "utf-8")
    result = simreduce(
        "calibrate", "--from-nccl-tests", str(log), "--out", str(tmp_path / "m.toml")
    )

    assert result.status == 2
    assert "needs --topology" in result.err


@pytest.mark.slow
def test_sharded_training_of_one_model(simreduce):
    found = simreduce("accuracy", "sharded", "--model", "1b", "--json")
    document = json.loads(found.out)

    assert found.status == 0
    assert document["complete"]
    assert [point["gpus"] for point in document["points"]] == [64, 128]
    assert "'2b' is not one of" in simreduce("accuracy", "sharded", "--model", "2b").err


def test_published_steps_of_one_model(simreduce):
    found = simreduce("accuracy", "mesh", "--set", "table-5", "--model", "megatron-22b", "--json")
    (group,) = json.loads(found.out)["groups"]

    assert found.status == 0
    assert (group["model"], group["steps"], group["choices"]) == ("megatron-22b", 2, 0)
    assert group["median"] < 0.07
    none = simreduce("accuracy", "mesh", "--set", "table-5", "--model", "megatron-3.6b")
    assert (none.status, "no step of megatron-3.6b is in table-5" in none.err) == (2, True)


def test_a_log_by_one_process_is_fitted_as_it_was_taken(simreduce, tmp_path):
    """The file that `bench -J` writes says how its calls were issued."""
    log, out = tmp_path / "a.json", tmp_path / "mine.toml"
    options = ["-b", "1K", "-e", "64M", "-f", "256", "-t", "1", "-n", "100"]
    simreduce("bench", "v100-mesh-4", "--algo", "nccl", *options, "-J", str(log))
    result = simreduce(
        "calibrate", "--from-nccl-tests", str(log), "--topology", "v100-mesh-4", "--collective",
        "all_reduce", "--out", str(out), "--json",
    )  # fmt: skip

    for row in json.loads(result.out)["rows"]:
        assert row["before_s"] == pytest.approx(row["measured_s"])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["-t", "3"], "-t: 3: threads must share the 4 GPUs"),
        (["-t", "3", "-g", "2"], "-g 2: -t 3: 6 GPUs of a machine, which has 4"),
        (["-w", "0"], "-w"),
    ],
)
def test_launchers_that_cannot_be(simreduce, options, fault):
    result = simreduce("bench", "v100-mesh-4", "--algo", "nccl", "-b", "64", *options)

    assert result.status == 2
    assert fault in result.err


def test_only_nccl_has_threads_that_issue_calls(simreduce):
    result = simreduce("bench", "v100-mesh-4", "--algo", "ring", "-b", "64", "-t", "2")

    assert (result.status, "only NCCL" in result.err) == (2, True)


def test_generations_left_out(simreduce):
    options = [
        "--tables",
        "all",
        "--only",
        "bessemer",
        "--left-out",
        "generation",
        "--workers",
        "1",
    ]
    result = simreduce("accuracy", *options)

    assert result.status == 0
    assert "median |error|" in result.out
    assert "without its generation" in result.out


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("", "none"),
        ("# Collective test starting: gather_perf", "gather_perf, and none"),
    ],
)
def test_a_log_whose_collective_is_not_found(simreduce, write, header, named):
    """It says what the log names, what it could name, and what to type."""
    rows = (Path(__file__).parents[3] / "docs" / "examples" / "nccl-tests.log").read_text("utf-8")
    log = write("a.log", re.sub("# Collective test.*", header, rows))
    done = simreduce(
        "calibrate", "--from-nccl-tests", log, "--topology", "dgx1v", "--out", "mine.toml"
    )

    assert done.status == 2
    assert f"{log}: its collective is not found: it names {named} of all_reduce_perf, " in done.err
    assert "; give --collective all_reduce|all_gather|" in done.err


MESHES = """topology = "dgx-h100"
workload = "llama-3-8b"
[step]
mesh = ["tp=2", "tp=4"]
global_batch = 16
"""


@pytest.mark.slow
def test_one_measured_step_narrows_the_next(simreduce, write, tmp_path, monkeypatch):
    """Of 2.5 s: the file that it writes is a GPU, by which that mesh takes 2.5 s."""
    monkeypatch.chdir(tmp_path)
    scenario, log = write("a.toml", MESHES), write("a.csv", "seconds,tokens\n2.5,131072\n")
    done = simreduce("calibrate", "step", log, "--scenario", scenario)
    again = simreduce("calibrate", "step", log, "--scenario", scenario)
    write("b.toml", MESHES + 'gpu = "gpu.toml"\n')
    rows = json.loads(simreduce("step", str(tmp_path / "b.toml"), "--json").out)["candidates"]

    assert done.status == 0
    assert "products = " in done.out
    assert "of another mesh takes 0.89 to 1.13 times" in done.out
    assert 2.5e6 == pytest.approx(
        next(r for r in rows if r["mesh"] == "tp=2,dp=4")["time_us"], 1e-3
    )
    assert (again.status, again.err.count("is there already")) == (2, 1)


@pytest.mark.parametrize(("seconds", "far"), [(2.5, False), (9.0, True)])
def test_a_step_that_is_hardly_of_the_scenario_is_told(simreduce, write, seconds, far):
    """It is predicted to take 1.75 s."""
    scenario, log = write("a.toml", MESHES), write("a.csv", f"seconds,tokens\n{seconds},131072\n")
    done = simreduce("calibrate", "step", log, "--scenario", scenario, "--out", "gpu.toml")

    assert far == ("that is far off: are mesh, batch, " in done.out)


def test_calibrate_step_says_every_fault_at_once(simreduce, write):
    done = simreduce("calibrate", "step", write("a.log", "nothing\n"), "--out", "mine.txt")

    assert done.status == 2
    assert "--scenario" in done.err
    assert "no line has the time of a step" in done.err
    assert "ends in .toml" in done.err
    assert simreduce("calibrate", "step", "a.log", "--scenario", "b", "--name", "x").status == 2


def test_calibrate_step_takes_a_scenario_with_a_mesh(simreduce, write):
    log = write("a.csv", "seconds,tokens\n2.5,131072\n")
    done = simreduce("calibrate", "step", log, "--scenario", "dgx1v-resnet50", "--out", "x.toml")

    assert (done.status, "step.mesh: is missing" in done.err) == (2, True)


TABLE = """[[tables]]
name = "mine"
source = "a test"
topology = "dgx-h100"
collective = "all_reduce"
times = ["1048576 36"]
"""


def test_a_users_tables_are_compared_and_others_are_named(simreduce, write):
    mine, other = write("a.toml", TABLE), write("b.toml", TABLE + 'library = "rccl"\n')
    found = json.loads(simreduce("accuracy", "nccl", mine, "--json").out)
    refused = simreduce("accuracy", "nccl", other, "--leave-one-out")

    assert [1] == [machine["points"] for machine in found["machines"]]
    assert refused.status == 2
    assert "library: 'rccl' of 'mine' is not predicted" in refused.err
    assert "--leave-one-out" in refused.err


def test_a_users_steps_were_in_no_fit(simreduce, write):
    head = "model,topology,gpus,global_batch,sequence,seconds\n"
    mine = write("a.csv", head + "llama-3-8b,dgx-h100,8,8,8192,1.3\n")
    done = simreduce("accuracy", "mesh", mine)

    assert (done.status, "fitted to the others" in done.out) == (0, False)
    assert "--set" in simreduce("accuracy", "mesh", mine, "--set", "table-5").err
