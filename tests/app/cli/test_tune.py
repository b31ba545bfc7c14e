"""`simreduce tune`: its text, its document, its plot and its faults."""

from __future__ import annotations

import json
import re

import pytest


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
    assert re.search(r"^Best for pytorch: nccl\+ddp=\S+, [\d.]+ ms$", done.out, re.MULTILINE)
    assert "  default    nccl+ddp, " in done.out
    assert "no other setting that is tried is faster" in done.out


def test_the_document_has_the_best_between_its_bound_and_the_default(simreduce, scenario):
    done = simreduce("tune", scenario, "--target", "deepspeed", "--workers", "1", "--json")
    document = json.loads(done.out)

    assert document["objective"] == "step"
    assert document["bound_us"] <= document["best"]["time_us"] <= document["default"]["time_us"]
    assert document["floor_us"] <= document["best"]["time_us"]


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
