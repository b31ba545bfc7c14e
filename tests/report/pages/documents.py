"""Small documents of every kind, as the commands print them."""

from __future__ import annotations

import json
from typing import Any

from simreduce.engine.setup import Setup
from simreduce.export import Exported
from simreduce.planners.strategy import parse_strategy
from simreduce.report import replicas
from simreduce.report.bench import BENCH, SizeTimes
from simreduce.report.explain import EXPLAIN, Explained
from simreduce.report.jobs import BESIDE, PLACEMENT
from simreduce.report.ranking import RUN, TUNE
from simreduce.report.steps import replicas_look_document, step_document, step_look_document
from simreduce.report.trace import Thread, recording_threads
from simreduce.study.job_files import load_jobs
from simreduce.study.scenario_files import load_replicas, load_scenario
from simreduce.study.tune.jobs import answer_jobs
from simreduce.study.tune.placement import place
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.search import files_of
from simreduce.study.tune.search.tune import tune
from simreduce.study.tune.sizes import bench
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif import savings
from simreduce.study.tune.whatif_steps import look_at_step, run_loads, update_effects, worker_time
from simreduce.training.stragglers import compare_backups, repeat, sample

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


SHARDED = MODEL.replace("[step]", '[step]\nmethod = ["ddp", "fsdp"]').replace(
    '"ring", "nccl+ddp"', '"nccl"'
)
SERVERS = """
topology = "pcie-single-root-4"
workload = "trivial"
[step]
batch = 4
rate = "10 TFLOP/s"
variable_update = "parameter_server"
local_parameter_device = "cpu"
"""
HOROVOD = SERVERS.replace("parameter_server", "horovod").partition("local")[0]
STEPS = {"step": MODEL, "sharded": SHARDED, "servers": SERVERS, "horovod": HOROVOD}
PLACED = """
topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1"
workload = "bytes:64K"
nodes = "n0,n2,n1,n3"
strategies = ["nccl"]
"""
JOBS = """
topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1"
[[job]]
name = "a"
nodes = [0, 2]
workload = "bytes:64K"
[[job]]
name = "b"
nodes = [3, 1]
workload = "bytes:1M"
"""
REPLICAS = """
topology = "p3-16xlargex4"
runtime = "tensorflow"
[replicas]
workers = ["n0.gpu0", "n1.gpu0", "n2.gpu0", "n3.gpu0"]
backups = 1
servers = 1
size = "10 MB"
compute = {distribution = "exponential", least = "5 ms", mean = "9 ms"}
updates = 6
skip = 2
repetitions = 4
"""


def _scenario(folder, text: str, machine: str = "switch:4") -> Any:
    path = folder / "question.toml"
    path.write_text(text.replace("{machine}", machine))
    return load_scenario(str(path))


def run_document(folder, machine: str = "switch:4") -> dict[str, Any]:
    return RUN.write(rank(_scenario(folder, SCENARIO, machine)))


def step_of(folder, text: str = MODEL) -> tuple[dict[str, Any], dict[str, Any]]:
    """The steps of a scenario, and a closer look at the best."""
    scenario = _scenario(folder, text)
    ranking = rank_steps(scenario)
    return step_document(ranking), step_look_document(look_at_step(ranking), ranking)


def replicas_of(folder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Updates of replicas, and a closer look at them."""
    path = folder / "replicas.toml"
    path.write_text(REPLICAS)
    scenario = load_replicas(str(path))
    q = scenario.question
    spread = repeat(q.job, q.updates, q.repetitions)
    choices = compare_backups(q.job, q.updates, q.repetitions, None, q.skip)
    run = sample(q.job, q.updates, q.skip)
    effects = update_effects(q, spread)
    spent, links = worker_time(run, q.skip), run_loads(q.job, run)
    look = replicas_look_document(spread.step(q.skip).mean, spent, links, effects)
    return replicas.REPLICAS.write(replicas.Updates(q, spread, choices, scenario)), look


def tune_document(folder) -> dict[str, Any]:
    found = tune(_scenario(folder, SCENARIO), "pytorch")
    return TUNE.write(found) | {"files": files_of(found)}


def placement_document(folder) -> dict[str, Any]:
    return PLACEMENT.write(place(_scenario(folder, PLACED)))


def jobs_document(folder) -> dict[str, Any]:
    file = folder / "jobs.toml"
    file.write_text(JOBS)
    asked = load_jobs(str(file))
    return BESIDE.write(answer_jobs(asked))


def record(machine: str = "switch:4", strategy: str = "nccl", size: str = "bytes:64K") -> Any:
    """A recording of a plan and its setup."""
    setup = Setup(machine).but(runtime="nccl")
    plan = setup.compile(strategy, size)
    return setup.record(plan), setup


def explain_document(recording, setup) -> dict[str, Any]:
    about = {
        "question": "q", "strategy": "nccl", "collective": "all_reduce", "workload": "two",
        "size_bytes": 1000, "ranks": 4, "repeat": 1, "equal_paths": "", "nccl_settings": "",
        "disturbance": "",
    }  # fmt: skip
    return EXPLAIN.write(Explained(recording, savings(recording, setup), about))


def bench_of(machine: str = "switch:4") -> dict[str, Any]:
    setup = Setup(machine, "by_strategy")
    strategies = [parse_strategy(text) for text in ("ring", "nccl")]
    rows = list(bench(setup, strategies, [1024, 65536]))
    return BENCH.write(SizeTimes(setup, rows))


def threads(recording, setup) -> list[Thread]:
    return list(recording_threads(recording, setup.topology))


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
        "option": name, "configuration": f"1 {name}", "pay": "rent", "per_million": cost,
        "machine": name, "gpus": 8, "step_time_s": 0.1, "step_low_s": 0.09,
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
    "target": {
        "samples": 1e6, "tokens_per_sample": None, "step_time_s": None, "efficiency": None,
        "samples_per_second": None, "tokens_per_second": 5.0, "cost_per_million_tokens": None,
        "time_s": None, "budget": None, "hourly": None, "minimise": "hourly",
    },
    "counted": "samples",
    "headline": "Rent 1 p4: 10 USD/h",
    "paid_off": "",
    "near_miss": "",
    "at_rates": [
        {"factor": factor, "flops_per_second": 4e14 * factor, "step_time_s": 0.1 / factor,
         "samples_per_second": 1.0, "per_million": 10.0 / factor, "time_s": None, "cost": None,
         "misses": ["time"] if factor < 1 else []}
        for factor in (0.75, 1.0, 1.25)
    ],
    "sensitivity_asked": True,
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

_COPIES = {
    "option": "14 x p4", "configuration": "14 p4", "pay": "rent", "machine": "p4", "nodes": 14,
    "network": "switch", "gpus": 112, "hourly": 10.0, "copies": 2, "hourly_per_copy": 5.0,
    "limit": "with 3, a takes 1.91 times as long", "misses": [],
}  # fmt: skip
CAPACITY_JOBS: dict[str, Any] = {
    **{key: CAPACITY[key] for key in (
        "command", "version", "title", "topology", "topology_digest", "currency", "prices",
        "paid_off", "refused", "notes",
    )},
    "jobs": "mix.toml",
    "target": {"slowdown": 1.1, "copies": 2, "hourly": None, "hourly_per_copy": None,
               "minimise": "hourly"},
    "headline": "Rent 14 p4: 2 copies fit",
    "choice": _COPIES,
    "options": [_COPIES, {**_COPIES, "option": "7 x p4", "copies": 0, "hourly_per_copy": None,
                          "misses": ["copies"]}],
    "waiting": [],
    "complete": True,
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

SWEEP_OF_JOBS: dict[str, Any] = {
    **SWEEP,
    "kind": "jobs",
    "keys": ["oversubscription"],
    "rows": [
        {"oversubscription": n, "state": "done", "reason": "", "seconds": 1e-3, "alone": 1e-3 / n,
         "slowdown": float(n), "worst": float(n), "job": "abc"[n - 1], "fairness": 1.0 / n}
        for n in (3, 1, 2)
    ],
    "states": {"done": 3},
}  # fmt: skip


_TIMED = {
    "place": 1, "strategy": "ring", "predicted_time_us": 90.0, "time_us": 100.0, "low_us": 95.0,
    "high_us": 104.0, "place_measured": 1, "faults": [],
}  # fmt: skip
MEASURED = {
    "measured": [_TIMED, {**_TIMED, "place": 2, "strategy": "nccl", "faults": ["it is wrong"]}],
    "measured_on": {"settings": {"backend": "cpu", "simulated": "host"}},
    "not_told_apart": ["ring", "direct"],
}
"""What `--measure` adds."""

EXPORTS = (
    Exported("pytorch", "PyTorch", {"a.py": "import torch\n", "b.csv": "1,2\n" * 50}),
    Exported("horovod", "Horovod", {}, ("it has no ring", "nor a tree"), "nccl+fusion"),
)
"""What other systems can be told."""

NAMES = (
    "run", "measured", "measured-tune", "bench", "explain", "tune", "validate", "capacity",
    "capacity-jobs", "sweep", "sweep-of-jobs", "replicas", "placement", "jobs", *STEPS,
)  # fmt: skip
"""Of the documents of `every`."""


def every(folder, recording, setup) -> tuple[dict[str, Any], dict[str, Any]]:
    """A document of each kind by its name, and closer looks at some of them."""
    looked = {name: step_of(folder, text) for name, text in STEPS.items()}
    looked["replicas"] = replicas_of(folder)
    made = {
        **{name: document for name, (document, _) in looked.items()},
        "run": run_document(folder),
        "bench": bench_of(),
        "explain": explain_document(recording, setup),
        "tune": tune_document(folder),
        "validate": VALIDATE,
        "capacity": CAPACITY,
        "capacity-jobs": CAPACITY_JOBS,
        "sweep": SWEEP,
        "sweep-of-jobs": SWEEP_OF_JOBS,
        "placement": placement_document(folder),
        "jobs": jobs_document(folder),
    }
    made["measured"] = {**made["run"], **MEASURED, "recommended": "ring"}
    made["measured-tune"] = {**made["tune"], "measured": MEASURED["measured"]}
    looks = {name: look for name, (_, look) in looked.items()}
    return json.loads(json.dumps(made)), json.loads(json.dumps(looks))
