"""Our schedules of pipelines are PyTorch's, as it plans them and as its processes run them."""

from __future__ import annotations

import json
import socket
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import multiprocessing
from torch.distributed.pipelining import schedules

sys.path.insert(0, str(Path(__file__).parent))  # for the processes that torch starts, too
from scheduled import CASES, MICROS, WORLD, record, stages_of

from simreduce.training.mesh.pipeline import parse_schedule, why_not, write_schedule

SIZES = [
    (p, v, m) for p in (1, 2, 3, 4, 8) for v in (1, 2, 3) for m in (1, 2, 3, 4, 6, 8, 9, 10, 16, 24)
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> list[dict[str, list[str]]]:
    """What each of the processes did, by schedule."""
    out = tmp_path_factory.mktemp("schedules")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(record, (port, str(out)), nprocs=WORLD)
    return [json.loads((out / f"{rank}.json").read_text("utf-8")) for rank in range(WORLD)]


@pytest.mark.parametrize("name", CASES)
def test_the_order_in_which_processes_run(ran, name):
    """A step of a small model on four processes over Gloo. Of two passes at once, PyTorch runs
    the forward pass first, if nobody gives it a function that runs both.
    """
    ours = write_schedule(name, WORLD, CASES[name][1], MICROS)

    assert [process[name] for process in ran] == [
        [str(part) for action in row for part in action.parts] for row in ours.rows
    ]


def _stage(index: int, stages: int, p: int) -> Any:
    """What a schedule asks of a stage before it runs."""
    return SimpleNamespace(
        stage_index=index, num_stages=stages, group_rank=0, group_size=p, is_first=index == 0,
        is_last=index == stages - 1, has_backward=True, submod=None, device="cpu", group=None,
        stage_index_to_group_rank={stage: stage % p for stage in range(stages)},
    )  # fmt: skip


def _planned(name: str, p: int, v: int, m: int) -> Any:
    """PyTorch's schedule object, with every rank's actions."""
    kind, stages = CASES[name][0], stages_of(name, 0, p, v)
    made = [_stage(index, p * v, p) for index in stages]
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    return kind(made if several else made[0], m, len)


@pytest.mark.parametrize("name", [name for name in CASES if name != "1f1b"])
def test_the_order_that_pytorch_plans(name):
    """Of many sizes, without bubbles. 1F1B is left out: what PyTorch 2.13 plans, and only prints,
    begins on the last rank with micro batch 1 and ends with one that there is not; what its
    processes run is above. With one stage on a rank, our zero bubble takes any number of micro
    batches; PyTorch's takes whole rounds only.
    """
    tried = 0
    for p, v, m in SIZES:
        size = p, v, m
        if [*why_not(name, *size)] or (name == "zero_bubble" and m % max(m // p, 1)):
            continue
        theirs = _planned(name, *size).pipeline_order
        ours = write_schedule(name, *size)
        tried += 1
        for rank, row in enumerate(ours.rows):
            planned = [str(action) for action in theirs[rank] if action is not None]
            assert [each for each in planned if "REDUCE_GRAD" not in each] == list(map(str, row))
    assert tried > 8


@pytest.mark.parametrize("name", ["interleaved", "zero_bubble", "zbv", "dualpipe"])
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_files_that_pytorch_writes(tmp_path, name, form):
    """Of passes alone, or with sends, receives and reductions, which here follow from them."""
    v = CASES[name][1]
    theirs, path = _planned(name, 4, v, 8), tmp_path / "theirs.csv"
    theirs._dump_csv(str(path), form)
    ours = write_schedule(name, 4, v, 8)
    found = parse_schedule(name, path.read_text("utf-8"))

    assert ours.rows == found.rows


@pytest.mark.parametrize("name", ["interleaved", "zero_bubble", "zbv"])
def test_pytorch_reads_our_files(tmp_path, name):
    """As a schedule of its own runtime."""
    v, path = CASES[name][1], tmp_path / "ours.csv"
    ours = write_schedule(name, 2, v, 4)
    lines = [",".join(map(str, row)) for row in ours.rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    theirs = _planned(name, 2, v, 4)
    theirs._load_csv(str(path), "compute_only")

    assert list(chain(*ours.rows)) != []
    assert lines == [",".join(map(str, theirs.pipeline_order[rank])) for rank in range(2)]
