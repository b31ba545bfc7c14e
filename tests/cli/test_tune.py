"""`simreduce tune`: its text, its document, its plot and its faults."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.command import REPOSITORY

HOW_TO = REPOSITORY / "docs" / "how-to" / "tune.md"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(
        'topology = "v100-mesh-4"\nworkload = "resnet50"\n[step]\nbatch = 8\ntime = "4 ms"\n'
    )
    return path


def test_the_text_names_the_best_the_default_and_the_bound(simreduce, scenario):
    done = simreduce("tune", scenario, "--objective", "time", "--workers", "1")

    assert done.status == 0
    assert re.search(r"^Best for pytorch: nccl\+ddp=\S+, [\d.]+ ms$", done.out, re.MULTILINE)
    assert "  default    nccl+ddp, " in done.out
    assert "no other setting is faster" in done.out


def test_the_document_has_the_keys_that_the_page_describes(simreduce, scenario):
    done = simreduce("tune", scenario, "--target", "deepspeed", "--workers", "1", "--json")
    document = json.loads(done.out)
    rows = HOW_TO.read_text("utf-8").partition("## The document")[2]
    described = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)))

    assert list(document) == described
    assert document["objective"] == "step"
    assert document["bound_us"] <= document["best"]["time_us"] <= document["default"]["time_us"]
    assert document["floor_us"] <= document["best"]["time_us"]
    keys = (
        "setting", "strategy", "rules", "gpu_indices", "method", "knobs", "cycle_us", "time_us",
        "told_apart", "needed_bytes", "fits",
    )  # fmt: skip
    assert tuple(document["best"]) == keys
    assert all(f"`{key}`" in rows for key in keys)


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
