"""`simreduce step` of a scenario with `[replicas]`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simreduce.study.scenario_files import load_replicas

SMALL = """
title = "four workers"
topology = "switch:4"
[replicas]
workers = 4
backups = 1
servers = ["gpu0"]
size = "1 MB"
compute = {distribution = "exponential", mean = "20 ms"}
updates = 6
repetitions = 4
"""
PLAIN = """
[replicas]
workers = 4
compute = "20 ms"
updates = 6
repetitions = 2
"""


@pytest.fixture
def asking(tmp_path):
    """A scenario with that text."""

    def write(text=SMALL):
        path = tmp_path / "mine.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def test_a_table_and_a_document(simreduce, asking):
    """The document begins as those of other steps do; the number of processes changes nothing."""
    path = asking()
    status, text, err = simreduce("step", path, "--workers", "1")
    one, two = (simreduce("step", path, "--json", "--workers", n).out for n in "12")
    document = json.loads(one)

    assert (0, "") == (status, err)
    assert "# four workers" == text.splitlines()[0]
    assert "4 workers on switch:4" in text
    assert "an update takes 3 gradients" in text
    assert "4 tokens after an update, 0 at first" in text
    assert one == two
    assert ("step", "mine", "switch:4", None, 3) == tuple(
        document[key]
        for key in ("command", "scenario", "topology", "workload", "replicas_to_aggregate")
    )
    assert [] == document["backups"]


def test_how_many_backups_are_best(simreduce, asking):
    document = json.loads(simreduce("step", asking(), "--backups", "--json", "--workers", "1").out)

    assert [0, 1, 2] == [row["backups"] for row in document["backups"]]
    assert document["step_time_us"] == document["backups"][1]["step_time_us"]


def test_a_timeline_and_a_trace_of_the_first_repetition(simreduce, asking, tmp_path):
    """Of the updates after those that do not count."""
    file = tmp_path / "t.json"
    status, text, _ = simreduce("step", asking(), "--workers", "1", "--trace", file)
    events = json.loads(file.read_text())["traceEvents"]
    rows = text.partition("the first repetition, updates 2 to 5:")[2].splitlines()[2:]

    assert 0 == status
    assert [f"gpu{i}" for i in range(4)] + ["updates"] == [row.split()[0] for row in rows]
    assert 4 <= rows[-1].count("|") - 2 + 1  # two of one moment may share a place
    names = [e["name"] for e in events if e["ph"] == "B"]
    assert [f"update {u}" for u in range(1, 6)] == [name for name in names if "update" in name]
    assert {"gpu0", "gpu3", "updates"} <= {
        e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }


def test_more_gradients_than_a_trace_can_show(simreduce, asking, tmp_path):
    status, _, err = simreduce(
        "step",
        asking('[replicas]\nworkers = 60000\ncompute = "1 s"\nupdates = 1\n'),
        "--trace",
        tmp_path / "t.json",
    )

    assert (2, True) == (status, "one update has too many gradients to show" in err)


def test_no_machine_is_needed(simreduce, asking):
    """Then communication takes what the table says: here nothing."""
    status, out, _ = simreduce("step", asking(PLAIN), "--json")

    assert 0 == status
    assert 20_000 == pytest.approx(json.loads(out)["step_time_us"]["mean"])


def test_upstream_s_tokens(simreduce, asking):
    """As many as an update needs are there at first."""
    path = asking(PLAIN)
    tokens = [
        json.loads(simreduce("step", path, "--json", *more).out)["num_tokens"]
        for more in ((), ("--faithful",))
    ]

    assert [0, 4] == tokens


def test_a_slow_device_computes_longer(simreduce, asking):
    """Everybody waits for it: 20 ms more, less what its late transfers need not share. Slow links
    alone would cost 1 ms.
    """
    path = asking(
        SMALL.replace("backups = 1", "").replace(
            '{distribution = "exponential", mean = "20 ms"}', '"20 ms"'
        )
    )
    calm, slow = (
        json.loads(simreduce("step", path, "--json", "--workers", "1", *more).out)["step_time_us"][
            "mean"
        ]
        for more in ((), ("--slow", "gpu3=2"))
    )

    assert slow - calm == pytest.approx(20_000, rel=0.01)


def test_a_job_that_always_blocks_fails(simreduce, asking):
    status, out, _ = simreduce("step", asking(PLAIN + 'dies = {1 = "30 ms"}\n'))

    assert 1 == status
    assert "never made" in out


def test_every_fault_is_told_at_once(simreduce, asking):
    """Of options that it does not use, of the file, of the table and of what goes wrong."""
    path = asking('strategies = ["ring"]\nfaithfull = true\n' + SMALL.replace("backups", "backup"))
    unused = ("--algo", "ring", "--batch", "3", "-g", "2", "--gpus", "0", "--gpu-indices", "0")
    status, out, err = simreduce("step", path, *unused, "--jitter", "3")

    assert (2, "") == (status, out)
    assert [
        *(
            f"simreduce: {name}: a scenario with [replicas] does not use it"
            for name in ("--algo", "--batch", "--ngpus", "--gpus", "--gpu-indices")
        ),
        f"simreduce: {path}: faithfull: unknown key (did you mean 'faithful'?)",
        (
            f"simreduce: {path}: strategies: [replicas] sends gradients to their servers, by no "
            f"strategy"
        ),
        f"simreduce: {path}: replicas.backup: unknown key (did you mean 'backups'?)",
        "simreduce: --jitter 3: needs a part between 0 and 1",
    ] == err.splitlines()


def test_faults_of_the_head_do_not_hide_those_of_the_table(simreduce, asking):
    """Each is told once."""
    path = asking(
        'runtime = "nccl"\nworkload = "resnet5000"\n' + PLAIN + "slow = {9 = 2.0}\nskip = 6\n"
    )
    _, _, err = simreduce("step", path)

    assert [
        "runtime: only a topology has use for it",
        "workload: no workload 'resnet5000'",
        "replicas.slow: the workers are 0 to 3, not 9",
        "replicas.skip: must be fewer than the 6 updates, got 6",
    ] == [line.split(f"{path}: ")[1].split(" (")[0].split(";")[0] for line in err.splitlines()]


def test_of_what_repetitions_times_are(simreduce, asking):
    """Worker 3 dies: with its token in some repetitions, waiting for one in others."""
    text = PLAIN.replace('"20 ms"', '{distribution = "exponential", mean = "20 ms"}').replace(
        "2\n", "40\n"
    )
    out = simreduce("step", asking(text + 'dies = {3 = "50 ms"}\n'), "--backups").out
    blocked = int(re.search(r"In (\d+) of 40 repetitions training stops; times are those", out)[1])

    assert 0 < blocked < 40
    assert "of those tried with which training stops least often" in out


@pytest.mark.parametrize(
    ("text", "more", "fault"),
    [
        (
            SMALL + '[step]\nbatch = 1\ntime = "1 s"\n',
            (),
            "mine.toml: step: a scenario has a step or [replicas], not both",
        ),
        (SMALL, ("--slow", "gpu9=2"), "switch:4: no device 'gpu9'"),
        (
            SMALL + "contention = false\n",
            ("--jitter", "0.1"),
            "replicas.contention: jitter needs it",
        ),
        (SMALL, ("--slow", "gpu9=2", "--jitter", "3"), "switch:4: no device 'gpu9'"),
        (PLAIN, ("--slow", "gpu0=2"), "has no topology, so nothing is there to disturb"),
        (PLAIN, ("--runtime", "ideal"), "runtime: only a topology has use for it"),
        ("replicas = 3\n", (), "replicas: must be a table, got 3"),
        (SMALL.replace("switch:4", "swich:4"), (), "topology: no topology 'swich:4'"),
        (
            'topology = "full:2"\nworkload = "bytes:1M"\n[step]\nbatch = 1\ntime = "1 s"\n',
            ("--backups",),
            "--backups: only a scenario with [replicas]",
        ),
    ],
)
def test_what_is_refused(simreduce, asking, text, more, fault):
    status, out, err = simreduce("step", asking(text), *more)

    assert (2, "") == (status, out)
    assert fault in err


def test_only_step_answers_it(simreduce, asking):
    status, _, err = simreduce("run", asking())

    assert 2 == status
    assert "only `simreduce step` answers that" in err


def test_the_shipped_one_is_found_by_its_name():
    scenario = load_replicas("step-p3x6-stragglers")

    assert (6, 4) == (
        scenario.question.job.workers,
        scenario.question.job.settings.replicas_to_aggregate,
    )


_ENDLESS = SMALL.replace("updates = 6\nrepetitions = 4", "updates = 20\nrepetitions = 100000")


@pytest.mark.slow
def test_what_is_stopped_tells_what_it_has_and_leaves_no_process(asking, tmp_path):
    out, (terminal, its) = tmp_path / "out", os.openpty()
    command = [
        sys.executable,
        "-m",
        "simreduce",
        "step",
        str(asking(_ENDLESS)),
        "--workers",
        "2",
        "--json",
    ]
    with out.open("w") as file, subprocess.Popen(command, stdout=file, stderr=its) as parent:
        os.close(its)
        told = b""
        while not re.search(rb"simulated [1-9]\d* of 100000 repetitions", told):
            told += os.read(terminal, 1000)
        pids = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.send_signal(signal.SIGTERM)
        status = parent.wait(60)
    os.close(terminal)
    document = json.loads(out.read_text())

    assert (130, False) == (status, document["complete"])
    assert 0 < document["repetitions"] < 100_000
    assert len(pids) >= 2
    assert [] == [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_choices_that_are_not_all_tried_are_not_compared(simreduce, asking, monkeypatch):
    """What an update takes is known all the same."""

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("simreduce.app.cli.run.compare_backups", stopped)
    status, text, _ = simreduce("step", asking(PLAIN), "--backups", "--workers", "1")

    assert (130, "ended before all backups were tried") == (status, text.splitlines()[-1])
    assert "One update takes 20 ms" in text
