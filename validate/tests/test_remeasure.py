"""`simreduce run --measure` on CPU devices of this machine."""

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


def ranked(tmp_path, *options):
    path = tmp_path / "four.toml"
    path.write_text(SCENARIO, "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "simreduce", "run", str(path), "--workers", "1", *options],
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

    assert 4 == len(document["candidates"])
    assert bool(options) == ("measured" in document)
    assert document.get("measured") is None
