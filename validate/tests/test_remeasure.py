"""`--measure` of `simreduce run` and `simreduce tune` on CPU devices of this machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCENARIO = """
topology = "switch:4"
workload = "bytes:4MiB"
strategies = ["ring", "direct", "copy_to_gpus+packs=4", "hierarchical_copy+packs=2"]
repeat = 2
"""


def ranked(tmp_path, *options, command="run", scenario=SCENARIO):
    path = tmp_path / "four.toml"
    path.write_text(scenario, "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "simreduce", command, str(path), "--workers", "1", *options],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_the_best_of_a_ranking_are_measured_and_one_of_them_is_recommended(tmp_path):
    """In the order of the ranking; what is recommended has no rival that is told apart from it."""
    done = ranked(tmp_path, "--measure", "3", "--iters", "12", "--json")

    assert 0 == done.returncode, done.stderr
    document = json.loads(done.stdout)
    rows = document["measured"]
    assert [c["strategy"] for c in document["candidates"][:3]] == [row["strategy"] for row in rows]
    assert [[], [], []] == [row["faults"] for row in rows]
    assert [1, 2, 3] == sorted(row["place_measured"] for row in rows)
    assert all(row["low_us"] <= row["time_us"] <= row["high_us"] for row in rows)
    (best,) = (row for row in rows if row["strategy"] == document["recommended"])
    runnable = {c["strategy"] for c in document["candidates"] if any(c["settings"].values())}
    fastest = min(
        (row for row in rows if row["strategy"] in runnable), key=lambda row: row["time_us"]
    )
    assert best["low_us"] <= fastest["high_us"]
    assert {2, 12} == {
        document["measured_on"]["settings"][key] for key in ("chained", "iterations")
    }


def test_what_was_simulated_is_printed_even_if_the_devices_give_up(tmp_path):
    """A step of a request of a microsecond never answers in time."""
    table = ranked(tmp_path).stdout
    done = ranked(tmp_path, "--measure", "1", "--timeout", "0.000001")

    assert 1 == done.returncode
    assert table == done.stdout
    assert done.stderr.startswith("simreduce: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [["--measure", "1", "--timeout", "0.000001"], []])
def test_the_document_is_whole_either_way(tmp_path, options):
    """What has not been measured is null, what nobody asked for is not there."""
    document = json.loads(ranked(tmp_path, *options, "--json").stdout)

    named = {"ring", "direct", "copy_to_gpus+packs=4", "hierarchical_copy+packs=2"}
    [today] = {each["strategy"] for each in document["candidates"]} - named
    assert 5 == len(document["candidates"]), f"{today} is what runs today"
    assert bool(options) == ("measured" in document)
    assert document.get("measured") is None


SMALL = 'topology = "switch:4"\nworkload = "bytes:4MiB"\n'


def tuned(tmp_path, target, *options):
    return ranked(tmp_path, "--target", target, "--measure", "2", "--iters", "6", *options,
                  command="tune", scenario=SMALL)  # fmt: skip


def test_what_tune_finds_is_measured_with_the_next_that_devices_run(tmp_path):
    """As many as asked for, the best first, although NCCL needs GPUs."""
    done = tuned(tmp_path, "tensorflow", "--json")

    assert 0 == done.returncode, done.stderr
    document = json.loads(done.stdout)
    rows = document["measured"]
    assert 2 == len(rows)
    assert document["best"]["strategy"] == rows[0]["strategy"]
    assert [[], []] == [row["faults"] for row in rows]
    assert all(0 < row["low_us"] <= row["time_us"] <= row["high_us"] for row in rows)
    assert "nccl+bucket=0 left out: NCCL has no CPU devices" in done.stderr


def test_what_tune_found_is_shown_though_devices_run_none_of_it(tmp_path):
    done = tuned(tmp_path, "pytorch")

    assert 2 == done.returncode
    assert done.stdout.startswith("# ")
    assert "PyTorch's defaults (DDP)" in done.stdout
    assert "--measure: these devices can run no strategy of the ranking" in done.stderr
