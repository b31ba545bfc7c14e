"""`simreduce tune`: its text, its document, its plot and its faults."""

from __future__ import annotations

import json
import re
import time

import pytest

from simreduce.study.tune.search.by_nccl import NcclSearch


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(
        'topology = "pcie-single-root-4"\nworkload = "alexnet"\n[step]\nbatch = 8\ntime = "4 ms"\n'
    )
    return path


def test_the_text_names_the_best_the_default_and_the_bound(simreduce, scenario):
    done = simreduce("tune", scenario, "--objective", "time", "--workers", "1")

    assert done.status == 0
    keep = "Keep PyTorch's defaults (DDP): an all-reduce takes "
    assert re.search(rf"^{re.escape(keep)}[\d.]+ ms\.", done.out, re.MULTILINE)
    assert re.search(r"^  fastest    nccl\+ddp=\S+, [\d.]+ ms$", done.out, re.MULTILINE)
    assert "# simreduce_ddp.py" not in done.out
    assert "no other setting that is tried is faster" in done.out


def test_the_document_has_the_best_between_its_bound_and_the_default(simreduce, scenario):
    done = simreduce("tune", scenario, "--target", "deepspeed", "--workers", "1", "--json")
    document = json.loads(done.out)

    assert document["objective"] == "step"
    assert document["bound_us"] <= document["best"]["time_us"] <= document["default"]["time_us"]
    assert document["floor_us"] <= document["best"]["time_us"]


def test_a_budget_of_time_ends_the_search_with_what_it_has(simreduce, scenario, monkeypatch):
    """Each search gets its part, and the default is always there."""
    monkeypatch.setattr(NcclSearch, "run", lambda *_: time.sleep(30))
    command = ("tune", scenario, "--target", "pytorch", "--workers", "1", "--budget", "10ms")
    begun = time.monotonic()
    document = json.loads(simreduce(*command, "--json").out)
    assert time.monotonic() - begun < 20
    assert (document["stopped"], document["hurried"]) == (True, True)
    assert document["default"]["setting"] == "nccl+ddp"
    assert document["floor_us"] <= document["bound_us"] <= document["best"]["time_us"]
    done = simreduce(*command)
    assert done.status == 0
    assert "left out for time (--budget; how many depends on this machine's speed)" in done.out


def test_the_plot_is_written(simreduce, scenario, tmp_path):
    svg = tmp_path / "curve.svg"
    done = simreduce("tune", scenario, "--objective", "time", "--workers", "1", "--svg", svg)

    assert done.status == 0
    assert "bytes of a bucket" in svg.read_text("utf-8")


def test_every_fault_is_named_at_once(simreduce, scenario):
    done = simreduce("tune", scenario, "--target", "pytorhc", "--slow", "x")

    assert done.status == 2
    assert "did you mean 'pytorch'" in done.err
    assert "--slow x" in done.err
