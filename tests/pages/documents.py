"""Small documents of every kind, as the commands print them."""

from __future__ import annotations

import json
from typing import Any

from simreduce.report.bench import bench_document
from simreduce.report.explain import explanation_document
from simreduce.report.ranking import ranking_document
from simreduce.report.steps import step_document
from simreduce.report.tuned import tuned_document
from simreduce.scenario import load_scenario
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.trace import trace_events
from simreduce.tune.bench import bench
from simreduce.tune.rank import rank
from simreduce.tune.search.hand_over import files_of
from simreduce.tune.search.tune import tune
from simreduce.tune.steps import rank_steps
from simreduce.tune.whatif import savings

SCENARIO = """
title = "Two gradients"
topology = "{machine}"
workload = "bytes:64K"
strategies = ["ring", "nccl", "nccl+ddp"]
"""
MODEL = """
title = "A step"
topology = "switch:4"
workload = "alexnet"
strategies = ["ring", "nccl+ddp"]
[step]
batch = 4
rate = "10 TFLOP/s"
"""


def _scenario(folder, text: str, machine: str = "switch:4") -> Any:
    path = folder / "question.toml"
    path.write_text(text.replace("{machine}", machine))
    return load_scenario(str(path))


def run_document(folder, machine: str = "switch:4") -> dict[str, Any]:
    return ranking_document(rank(_scenario(folder, SCENARIO, machine)))


def step_of(folder) -> dict[str, Any]:
    return step_document(rank_steps(_scenario(folder, MODEL)))


def tune_document(folder) -> dict[str, Any]:
    found = tune(_scenario(folder, SCENARIO), "pytorch")
    return tuned_document(found, files_of(found))


def record(machine: str = "switch:4", strategy: str = "nccl", size: str = "bytes:64K") -> Any:
    """A recording of a plan and its setup."""
    setup = Setup(machine).but(runtime="nccl")
    plan = setup.compile(strategy, size)
    return setup.record(plan), setup


def explain_document(recording, setup) -> dict[str, Any]:
    about = {
        "question": "q", "strategy": "nccl", "collective": "all_reduce", "workload": "two",
        "size_bytes": 1000, "ranks": 4, "repeat": 1, "disturbance": "",
    }  # fmt: skip
    return explanation_document(recording, savings(recording, setup), about)


def bench_of(machine: str = "switch:4") -> dict[str, Any]:
    setup = Setup(machine, "by_strategy")
    strategies = [parse_strategy(text) for text in ("ring", "nccl")]
    rows = list(bench(setup, strategies, [1024, 65536]))
    return bench_document(rows, 4, setup.machine.name, "by_strategy", "nominal")


def events(recording, setup) -> list[dict[str, Any]]:
    return list(trace_events(recording, setup.topology))


VALIDATE: dict[str, Any] = {
    "command": "validate",
    "version": "0.1.0",
    "topology": "switch:4",
    "ranks": 4,
    "backend": "cpu",
    "route": "session",
    "chained": 1,
    "runtime": "tensorflow",
    "calibration": "nominal",
    "provenance": {"cpu": "a processor"},
    "rows": [
        {"size_bytes": 1024, "algorithm": "ring", "time_us": 100.0, "low_us": 90.0,
         "high_us": 110.0, "predicted_time_us": 80.0, "wrong": 0},
        {"size_bytes": 4096, "algorithm": "direct", "time_us": 200.0, "low_us": 190.0,
         "high_us": 210.0, "predicted_time_us": None, "wrong": 0},
    ],
    "complete": True,
}  # fmt: skip


def _option(name: str, time: float, cost: float) -> dict[str, Any]:
    return {
        "option": name, "machine": name, "gpus": 8, "step_time_s": 0.1, "step_low_s": 0.09,
        "step_high_s": 0.12, "simulated_s": 0.1, "efficiency": 0.9, "time_s": time, "cost": cost,
        "hourly": 10.0, "misses": [], "bottleneck": "a link",
    }  # fmt: skip


CAPACITY: dict[str, Any] = {
    "command": "capacity",
    "version": "0.1.0",
    "title": "Which machines?",
    "workload": "resnet50",
    "topology": "switch:4",
    "topology_digest": "",
    "currency": "USD",
    "prices": {"title": "a list", "date": "2024", "items": [
        {"name": "p.price", "value": 10.0, "unit": "USD/h"}]},
    "target": {"samples": 1e6},
    "choice": _option("p4", 3600.0, 10.0),
    "binds": [{"name": "compute", "share": 0.9}, {"name": "update", "share": 0.1}],
    "options": [_option("p4", 3600.0, 10.0), _option("p5", 1800.0, 20.0)],
    "frontier": ["p4", "p5"],
    "sensitivity": [
        {"assumption": "p.price", "value": 10.0, "unit": "USD/h", "below": None,
         "above": {"at": 12.0, "becomes": "p5"}, "within": None, "tolerance": 0.0}],
    "refused": [{"option": "p3", "reason": "too small"}],
    "notes": ["prices age"],
}  # fmt: skip

SWEEP: dict[str, Any] = {
    "command": "sweep",
    "version": "0.1.0",
    "topology": "switch:4",
    "topology_digest": None,
    "name": "switch",
    "kind": "bench",
    "keys": ["nodes", "strategy"],
    "states": {"done": 4, "refused": 1},
    "rows": [
        *({"nodes": nodes, "strategy": name, "state": "done", "reason": "", "seconds": 1e-3 * nodes,
           "low": 1e-3 * nodes, "high": 2e-3 * nodes, "bound": "a link", "bound_share": 0.5}
          for nodes in (1, 2) for name in ("ring", "nccl")),
        {"nodes": 3, "strategy": "nccl", "state": "refused", "reason": "no", "seconds": None},
    ],
}  # fmt: skip


def every(folder, recording, setup) -> dict[str, Any]:
    """A document of each kind, by its name."""
    made = {
        "run": run_document(folder),
        "step": step_of(folder),
        "bench": bench_of(),
        "explain": explain_document(recording, setup),
        "tune": tune_document(folder),
        "validate": VALIDATE,
        "capacity": CAPACITY,
        "sweep": SWEEP,
    }
    return json.loads(json.dumps(made))
