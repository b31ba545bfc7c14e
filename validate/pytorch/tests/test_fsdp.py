"""FullyShardedDataParallel issues collectives in the order of our schedule."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from torch import multiprocessing

sys.path.insert(0, str(Path(__file__).parent))  # for the processes that torch starts, too
from issued import BLOCKS, SETTINGS, record

from simreduce.training.sharded import Do, Sharding, schedule, wrap
from simreduce.workload import Gradient, Layer, Model

LETTERS = {Do.GATHER: "g", Do.REDUCE: "r", Do.FORWARD: "F", Do.BACKWARD: "B"}


@pytest.fixture(scope="module")
def issued(tmp_path_factory) -> dict[str, list[str]]:
    out = tmp_path_factory.mktemp("fsdp") / "issued.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(record, (2, port, str(out)), nprocs=2)
    return json.loads(out.read_text("utf-8"))


@pytest.mark.parametrize("no_sync", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_order_of_issue(issued, name, no_sync):
    """Of all-gathers, passes of the blocks, and reduce-scatters; the root is unit 0."""
    ends = [Layer(each, (Gradient(each, 64),)) for each in ("first", "last")]
    blocks = [Layer(f"h.{i}", (Gradient(f"h.{i}", 144 + 16 * i),)) for i in range(BLOCKS)]
    units = wrap(Model("model", (ends[0], *blocks, ends[1])), "blocks")
    how = {"reshard_after_forward": False} if name == "stay" else {"backward_prefetch": name}
    ours = [
        LETTERS[each.do] + str(each.unit)
        for each in schedule("fsdp", units, Sharding(**how), 2 if no_sync else 1)
        if each.do in LETTERS and (each.unit or each.do in (Do.GATHER, Do.REDUCE))
    ]
    theirs = issued[name + (", no_sync" if no_sync else "")]

    assert theirs == ours[: len(theirs)]
    assert len(theirs) == len(ours) or no_sync
