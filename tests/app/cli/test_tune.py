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
    keep = "Keep PyTorch's defaults (DDP): one all-reduce takes "
    assert re.search(rf"^{re.escape(keep)}[\d.]+ ms\.", done.out, re.MULTILINE)
    assert re.search(r"^  nccl\+ddp=\S+ +[\d.]+ +0\.0%", done.out, re.MULTILINE)
    assert "# simreduce_ddp.py" not in done.out
    assert "Is there anything better?" in done.out


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
    assert "size of a bucket" in svg.read_text("utf-8")


def test_every_fault_is_named_at_once(simreduce, scenario):
    done = simreduce("tune", scenario, "--target", "pytorhc", "--slow", "x")

    assert done.status == 2
    assert "did you mean 'pytorch'" in done.err
    assert "--slow x" in done.err


@pytest.fixture
def serving(tmp_path):
    """A tensor of tensor parallel ranks."""

    def write(machine, size="64KiB"):
        path = tmp_path / "serving.toml"
        path.write_text(f'topology = "{machine}"\nworkload = "bytes:{size}"\n', "utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("target", "size", "best", "switch"),
    [
        ("vllm", "4KiB", "symmetric", "VLLM_USE_NCCL_SYMM_MEM=1"),
        ("vllm", "64KiB", "oneshot", "VLLM_CUSTOM_ALLREDUCE_ALGO=1stage"),
        ("tensorrt_llm", "4MiB", "symmetric", "allreduce_strategy: NCCL_SYMMETRIC"),
        ("flashinfer", "2MiB", "twoshot", "use_oneshot=False"),
    ],
)
def test_of_serving_it_is_the_fastest_kernel_with_a_row_for_each_range(
    simreduce, serving, target, size, best, switch
):
    """The row that holds for the size of the scenario has the same answer."""
    path, words = serving("dgx-h100", size), ("--target", target, "--workers", "1")
    document = json.loads(simreduce("tune", path, *words, "--json").out)
    nbytes = {"4KiB": 4096, "64KiB": 65536, "2MiB": 2 << 20, "4MiB": 4 << 20}[size]

    assert document["best"]["setting"] == best
    assert document["call_cost_us"] == 0
    rows = document["by_size"]
    assert [row["size_bytes"] for row in rows] == sorted(row["size_bytes"] for row in rows)
    (held,) = [row for row in rows if row["size_bytes"] <= nbytes][-1:]
    assert (best, switch) == (held["algorithm"], held["switch"])
    assert all(row["time_us"] <= row["default_us"] for row in rows)
    assert "nominal" not in document


def test_kernels_of_pytorch_are_said_where_nvlinks_join_all_gpus(simreduce, serving):
    words = "--target", "pytorch", "--workers", "1", "--json"
    rows = json.loads(simreduce("tune", serving("dgx-h100"), *words).out)["by_size"]
    registered = "torch.distributed.all_reduce after register_mem_pool(pool, symm=True)"
    assert (rows[0]["algorithm"], rows[0]["switch"]) == ("symmetric", registered)
    switches = {row["algorithm"]: row["switch"] for row in rows}
    assert switches["oneshot"] == "torch.ops.symm_mem.one_shot_all_reduce"
    assert rows[-1]["algorithm"] == "symmetric"
    assert {row["default"] for row in rows} == {"nccl"}
    assert "by_size" not in json.loads(simreduce("tune", serving("dgx1v"), *words).out)


def test_kernels_of_amd_gpus_are_nominal_and_what_trains_nothing_has_no_step(
    simreduce, serving, scenario
):
    words = "--target", "vllm", "--workers", "1"
    found = simreduce("tune", serving("mi300x"), *words).out
    assert "are nominal: kernels have Hopper's constants" in found
    assert "multimem" not in found
    refused = simreduce("tune", scenario, *words, "--objective", "step")
    assert (2, "") == (refused.status, refused.out)
    assert "vllm trains nothing; give --objective time" in refused.err
    refused = simreduce("tune", serving("mi300x"), "--target", "tensorrt_llm")
    assert (2, "") == (refused.status, refused.out)
