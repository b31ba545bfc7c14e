"""MSCCL++'s plans, read by the rules of its reader and run one op of any block at a time."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict

import pytest

from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.planners.strategy import parse_strategy
from simreduce.workload.loader import load_workload
from tests.planners.msccl.oracle import Stuck, add, value

OPS = {"nop", "put", "signal", "wait", "flush", "copy", "re", "sem_acquire", "sem_release"}
CASES = [
    ("ring", "switch:4"),
    ("halving_doubling", "switch:4"),
    ("double_tree", "switch:5"),
    ("one_shot", "switch:3"),
    ("ring/ring", "a100-mesh-4x2"),
]


def plan(strategy: str, machine: str) -> dict:
    choice = Choice(Setup(machine), load_workload("trivial"), parse_strategy(strategy))
    [(name, text)] = export("mscclpp", choice).items()
    assert name == "mscclpp.json"
    return json.loads(text)


class Machine:
    """The channels, buffers and semaphores of a plan, as the executor sets them up."""

    def __init__(self, document: dict) -> None:
        self.gpus = document["gpus"]
        self.chunks = self.gpus[0]["input_chunks"]
        self.memory = [defaultdict(lambda: None) for _ in self.gpus]
        self.signals: Counter = Counter()
        self.semaphores = [[each["init_value"] for each in gpu["semaphores"]] for gpu in self.gpus]
        self.ends = {}
        for rank, gpu in enumerate(self.gpus):
            assert gpu["id"] == rank
            assert (gpu["input_chunks"], gpu["output_chunks"]) == (self.chunks, self.chunks)
            for i in range(self.chunks):
                self.memory[rank]["i", i] = value(rank, i)
            met: Counter = Counter()
            for channel in gpu["channels"]:
                for number, peer in enumerate(channel["connected_to"]):
                    kind = channel["channel_type"]
                    self.ends[rank, kind, number] = (peer, kind, met[peer, kind])
                    met[peer, kind] += 1
        for (rank, kind, _), (peer, _, index) in self.ends.items():
            assert (rank, kind, index) in [
                (p, k, i) for (r, k, _), (p, _, i) in self.ends.items() if r == peer
            ]  # the other side has as many

    def step(self, rank: int, block: dict, op: dict) -> bool:
        """Run an op; False if it must wait."""
        assert op["name"] in OPS
        kind = op.get("channel_type")
        channel = None
        if "channel_ids" in op:
            listed = next(c["channel_ids"] for c in block["channels"] if c["channel_type"] == kind)
            channel = (rank, kind, listed[op["channel_ids"][0]])
        match op["name"]:
            case "signal":
                peer, kind, index = self.ends[channel]
                self.signals[peer, rank, kind, index] += 1
            case "wait":
                peer, kind, index = self.ends[channel]
                if not self.signals[rank, peer, kind, index]:
                    return False
                self.signals[rank, peer, kind, index] -= 1
            case "sem_release":
                for i in op["semaphore_ids"]:
                    self.semaphores[rank][i] += 1
            case "sem_acquire":
                if not all(self.semaphores[rank][i] for i in op["semaphore_ids"]):
                    return False
                for i in op["semaphore_ids"]:
                    self.semaphores[rank][i] -= 1
            case "put":
                [target] = op["dst_buff"]
                refs = next(ref for ref in block["remote_buffer_refs"]
                            if ref["access_channel_type"] == kind)  # fmt: skip
                remote = self.gpus[rank]["remote_buffers"][
                    refs["remote_buffer_ids"][target["buffer_id"]]
                ]
                assert kind in remote["access_channel_types"]
                assert remote["rank"] == self.ends[channel][0]
                self._write(
                    remote["rank"], remote["type"], target, self._read(rank, op["src_buff"][0])
                )
            case "copy" | "re":
                values = [self._read(rank, source) for source in op["src_buff"]]
                total = values[0]
                for more in values[1:]:
                    total = [add(a, b) for a, b in zip(total, more, strict=True)]
                [target] = op["dst_buff"]
                self._write(rank, target["type"], target, total)
        return True

    def _read(self, rank, buffer):
        limit = self.gpus[rank]["scratch_chunks"] if buffer["type"] == "s" else self.chunks
        assert buffer["index"] + buffer["size"] <= limit
        return [
            self.memory[rank][buffer["type"], buffer["index"] + i] for i in range(buffer["size"])
        ]

    def _write(self, rank, kind, buffer, values):
        assert len(values) == buffer["size"]
        assert kind != "s" or buffer["index"] + len(values) <= self.gpus[rank]["scratch_chunks"]
        for i, number in enumerate(values):
            self.memory[rank][kind, buffer["index"] + i] = number


def run(document: dict, seed: int) -> bool:
    """Whether a schedule drawn at random ends with the sums."""
    machine, draw = Machine(document), random.Random(seed)  # noqa: S311 - no secret
    blocks = [(g, block) for g, gpu in enumerate(machine.gpus) for block in gpu["threadblocks"]]
    done = [0] * len(blocks)
    while waiting := [i for i, (_, b) in enumerate(blocks) if done[i] < len(b["ops"])]:
        draw.shuffle(waiting)
        for i in waiting:
            rank, block = blocks[i]
            if machine.step(rank, block, block["ops"][done[i]]):
                done[i] += 1
                break
        else:
            raise Stuck
    assert not any(machine.signals.values())
    assert not any(
        any(each) for each in machine.semaphores
    )  # as they were: the next call may begin
    ranks = range(len(machine.gpus))
    want = [sum(value(rank, i) for rank in ranks) for i in range(machine.chunks)]
    return all([memory["i", i] for i in range(machine.chunks)] == want for memory in machine.memory)


@pytest.mark.parametrize(("strategy", "machine"), CASES)
def test_a_plan_sums_right_in_any_order(strategy, machine):
    document = plan(strategy, machine)

    assert all(run(document, seed) for seed in range(4))
    kinds = {c["channel_type"] for gpu in document["gpus"] for c in gpu["channels"]}
    assert kinds == ({"memory", "port"} if machine.endswith("x2") else {"memory"})
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            assert all(op["name"] == "nop" for op in block["ops"][1::2])


def test_without_a_put_or_a_reduction_it_sums_wrong():
    for name in ("put", "re"):
        document = plan("ring", "switch:4")
        ops = document["gpus"][1]["threadblocks"][0]["ops"]
        del ops[next(i for i, op in enumerate(ops) if op["name"] == name)]
        assert not run(document, 0)


def test_without_the_first_signal_it_waits_for_ever():
    document = plan("ring", "switch:4")
    del document["gpus"][1]["threadblocks"][0]["ops"][0]
    with pytest.raises(Stuck):
        run(document, 0)
