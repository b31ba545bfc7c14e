"""Chakra traces of ours, read by MLCommons' own tool: the package mlc-chakra."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simreduce.study.scenario_files import load_meshes
from simreduce.study.tune.meshes import rank_meshes
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Execution,
    ExecutionNode,
    write as write_chakra,
)

SCENARIO = """
topology = "dgx-a100"
workload = "transformer:layers=8,hidden=1024,heads=16,vocab=51200,seq=512"
[step]
mesh = "tp=2,pp=2"
global_batch = 8
"""
TYPES = {
    COMPUTE: "COMP_NODE",
    COLLECTIVE: "COMM_COLL_NODE",
    SEND: "COMM_SEND_NODE",
    RECEIVE: "COMM_RECV_NODE",
}
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "reduce_scatter": 7}
"""Numbers of CollectiveCommType."""


def _read(trace: Path) -> Iterator[dict[str, Any]]:
    """The messages of a trace as `chakra_jsonizer` writes them, one JSON after another."""
    out = trace.with_suffix(".json")
    tool = [sys.executable, "-m", "chakra.src.jsonizer.jsonizer"]
    subprocess.run(
        [*tool, "--input_filename", str(trace), "--output_filename", str(out)], check=True
    )
    text, place = out.read_text("utf-8"), 0
    while place < len(text):
        message, place = json.JSONDecoder().raw_decode(text, place)
        yield message


def _expected(
    rank: int, node: ExecutionNode, groups: dict[str, list[int]], execution: Execution
) -> Any:
    """What a message has to say besides its number: type, dependencies, time, attributes."""
    found: dict[str, Any] = {"is_cpu_op": False}
    if node.kind != COMPUTE:
        found["comm_size"] = node.nbytes
    if node.kind == COLLECTIVE:
        found["comm_type"] = COLLECTIVES[node.collective]
        members = list(execution.members(node))
        found["pg_name"] = next(name for name, ranks in groups.items() if ranks == members)
    if node.kind in (SEND, RECEIVE):
        ends = (rank, node.peer) if node.kind == SEND else (node.peer, rank)
        found |= {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": node.tag}
    micros = round((node.seconds or 0.0) * 1e6)
    return node.name, TYPES[node.kind], sorted(node.after), micros, found


def _told(message: dict[str, Any]) -> Any:
    values = {
        attribute["name"]: next(
            int(value) if key.startswith("int") else value
            for key, value in attribute.items()
            if key != "name"
        )
        for attribute in message["attr"]
    }
    after = sorted(map(int, message.get("dataDeps", [])))
    micros = int(message.get("durationMicros", 0))
    return message["name"], message["type"], after, micros, values


def test_a_trace_is_read_by_another_program(tmp_path):
    """Every node of all ranks, with all that its reader knows."""
    path = tmp_path / "mesh.toml"
    path.write_text(SCENARIO, "utf-8")
    execution = rank_meshes(load_meshes(str(path))).case.write()
    for name, content in write_chakra(execution, "step").items():
        (tmp_path / name).write_bytes(content)
    groups = json.loads((tmp_path / "groups.json").read_text("utf-8"))

    assert [*range(8)] == list(execution.nodes)
    for rank, nodes in execution.nodes.items():
        head, *messages = _read(tmp_path / f"step.{rank}.et")
        assert {"version": "0.0.4"} == head
        assert [*range(len(nodes))] == [int(message.get("id", 0)) for message in messages]
        assert [_expected(rank, node, groups, execution) for node in nodes] == [
            _told(message) for message in messages
        ]
        assert {*TYPES.values()} == {message["type"] for message in messages}
