"""A step for trace viewers: the events of the format, and that they are those of the step."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from simreduce.report.trace import ranking_threads, step_threads, thread_events, trace_text
from simreduce.study.scenario_files import load_meshes, load_scenario
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.steps import rank_steps
from tests.training.small import TICK, job, run


@pytest.fixture(scope="module")
def events():
    # Two reductions at once, so that one of them is on a track of its own.
    step = run(job([4, 4], [1, 2], [1, 1]), "ring")
    return list(thread_events(step_threads(step, ["a", "b"])))


def slices(events, process):
    """(name, from, to) of every slice of a process."""
    number = next(
        e["pid"] for e in events if e.get("name") == "process_name" and e["args"]["name"] == process
    )
    mine = [e for e in events if e["ph"] in "BE" and e["pid"] == number]
    return [(b["name"], b["ts"], e["ts"]) for b, e in zip(mine[::2], mine[1::2], strict=True)]


def test_what_computes_and_what_moves_is_where_the_step_has_it(events):
    """In microseconds."""
    us = TICK * 1e6

    assert [
        ("forward layer0", 0.0, us), ("forward layer1", us, 3 * us),
        ("backward layer1", 3 * us, 4 * us), ("backward layer0", 4 * us, 5 * us),
    ] == slices(events, "compute")  # fmt: skip
    assert [("b", 4 * us, 11 * us), ("a", 5 * us, 12 * us)] == slices(events, "reductions")


def test_slices_that_overlap_have_threads_of_their_own(events):
    """Every thread has a name, and begins and ends alternate in it."""
    names = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    phases: dict[int, str] = {}
    for e in events:
        if e["ph"] in "BE":
            phases[e["tid"]] = phases.get(e["tid"], "") + e["ph"]

    assert {"2 GPUs", "reductions", "reductions (2)"} == names
    assert {"BE"} == {p[i : i + 2] for p in phases.values() for i in range(0, len(p), 2)}


def test_the_file_is_one_json_document():
    """With what is said of the run as a whole."""
    step = run(job([4, 4], [1, 2], [1, 1]), "ring+packs=1")
    found = thread_events(step_threads(step, ["a", "b"]))
    document = json.loads("".join(trace_text({"scenario": "mine"}, found)))
    named = Counter(e["name"] for e in document["traceEvents"] if e["ph"] == "B")

    assert {"scenario": "mine"} == document["otherData"]
    assert 1 == named["b to a"]


def _levels(events):
    """(time, value) of every counter by its name."""
    found = {}
    for e in events:
        if e["ph"] == "C":
            [value] = e["args"].values()
            found.setdefault(e["name"], []).append((e["ts"], value))
    return found


def test_counters_add_up_what_is_under_way(events):
    """Two transfers that overlap, and nothing at the end."""
    us = TICK * 1e6
    found = _levels(events)

    times = [4 * us, 5 * us, 11 * us, 12 * us]
    assert [*zip(times, (1, 2, 1, 0), strict=True)] == found["reductions: transfers in flight"]
    size = next(e["args"]["bytes"] for e in events if e["ph"] == "B" and e["name"] == "b") / 1e9
    assert [value for _, value in found["reductions: GB in flight"]] == pytest.approx(
        [size, 2 * size, size, 0.0]
    )


def _ranking(folder, lines, load, rank):
    path = folder / "mine.toml"
    path.write_text(f"title = 'a question'\n{lines}", "utf-8")
    return rank(load(str(path)))


def test_links_of_a_step_carry_what_its_transfers_move(tmp_path):
    """A ring of four ranks: each link 6/4 of the gradients, at its mean rate."""
    text = """topology = "full:4"
workload = "alexnet"
runtime = "ideal"
strategies = ["ring"]
[step]
batch = 4
time = "5 ms"
"""
    ranking = _ranking(tmp_path, text, load_scenario, rank_steps)
    threads = [each for each in ranking_threads(ranking) if each[0].startswith("links")]
    moved = ranking.scenario.workload.nbytes
    carried: Counter[str] = Counter()
    for _, name, slices in threads:
        for begin, end, *_, args in slices:
            carried[name.split(" (")[0]] += args["gb_per_s"] * (end - begin)

    assert 4 == len(carried)
    assert dict.fromkeys(carried, pytest.approx(1.5 * moved / 1e9, rel=1e-3)) == carried
    counters = [name for name in _levels(thread_events(ranking_threads(ranking))) if "GB/s" in name]
    assert 1 == len(counters)


def test_ranks_of_a_mesh_that_differ_have_threads_and_what_they_hold(tmp_path):
    """One rank of each stage stands for others; its counter of memory reaches the peak."""
    text = """topology = "dgx-h100"
workload = "gpt2"
[step]
mesh = "tp=2,pp=2"
global_batch = 16
"""
    ranking = _ranking(tmp_path, text, load_meshes, rank_meshes)
    found = list(thread_events(ranking_threads(ranking)))
    processes = [e["args"]["name"] for e in found if e.get("name") == "process_name"]
    levels = _levels(found)

    assert {"rank 0 and 3 alike", "rank 4 and 3 alike"} <= {*processes}
    for stage, held in enumerate(ranking.closely.held, 1):
        mine = [value for _, value in levels[f"memory of stage {stage}: GB held"]]
        assert held.peak / 1e9 == pytest.approx(max(mine))
        assert 0.0 == mine[-1]
