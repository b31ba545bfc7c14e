"""Steps as text and as documents."""

from __future__ import annotations

import json

import pytest

from simreduce.report import step_document, step_table
from simreduce.report.steps import timeline
from simreduce.scenario import load_scenario
from simreduce.training import Bucket, Span, Step
from simreduce.tune.steps import rank_steps


def step(*, spans: tuple[Span, ...] = (), buckets: tuple[Bucket, ...] = (), seconds: float = 16.0) -> Step:
    return Step("test", 2, 4, seconds, 10.0, 0.0, 6.0, buckets, (), spans, (seconds,), True)


def bucket(start: float, finish: float) -> Bucket:
    return Bucket((0,), (0, 1), 100, start, start, finish)


def test_a_timeline_has_a_character_for_every_part_of_the_step():
    """Forward, backward, and what waits; by whichever has more of it."""
    spans = (Span("gpu0", "a", False, 0.0, 4.0), Span("gpu0", "a", True, 4.0, 9.4))
    buckets = (bucket(8.0, 12.0), bucket(10.0, 15.2), bucket(11.0, 12.0))

    assert [
        "              0   16000.000 ms",
        "  gpu0       |FFFFBBBBB.......|",
        "  reductions |........==23===-|",
    ] == timeline(step(spans=spans, buckets=buckets), 16)


def test_many_devices_are_the_first_two_and_the_last():
    """And how many there are more."""
    spans = tuple(Span(f"gpu{i}", "a", False, 0.0, 16.0) for i in range(12))
    lines = timeline(step(spans=spans), 16)

    assert ["gpu0", "gpu1", "gpu11", "(9"] == [line.split()[0] for line in lines[1:]]


@pytest.fixture(scope="module")
def ranking(tmp_path_factory):
    path = tmp_path_factory.mktemp("step") / "mine.toml"
    path.write_text(
        'title = "a question"\ntopology = "full:4"\nworkload = "alexnet"\nruntime = "ideal"\n'
        'strategies = ["ring", "nccl+fusion"]\n[step]\nbatch = 4\ntime = "5 ms"\nupdate = "1 ms"\n',
        "utf-8",
    )
    scenario = load_scenario(str(path))
    return rank_steps(scenario, scenario.layout())


def test_the_document_has_the_keys_that_others_rely_on(ranking):
    """In microseconds, and it is JSON."""
    document = json.loads(json.dumps(step_document(ranking)))
    best = ranking.best.step

    assert [best.seconds * 1e6, best.compute * 1e6, best.communication * 1e6, best.exposed * 1e6] == [
        document[key] for key in ("step_time_us", "compute_us", "communication_us", "exposed_us")
    ]
    assert (best.images_per_second, "step", "mine", 4, 4) == tuple(
        document[key] for key in ("images_per_second", "command", "scenario", "ranks", "batch")
    )
    assert len(best.buckets) == len(document["buckets"])
    assert [
        "gradients",
        "devices",
        "size_bytes",
        "ready_us",
        "start_us",
        "finish_us",
    ] == list(document["buckets"][0])
    assert 16 == sum(len(b["gradients"]) for b in document["buckets"])
    assert [c["step_time_us"] for c in document["candidates"]] == sorted(
        c["step_time_us"] for c in document["candidates"]
    )
    assert document["candidates"][0]["strategy"] == document["strategy"]


def test_parts_of_a_step_add_up(ranking):
    """Compute, update and what is exposed."""
    d = step_document(ranking)

    assert d["step_time_us"] == pytest.approx(d["compute_us"] + d["update_us"] + d["exposed_us"])
    assert 1000.0 == pytest.approx(d["update_us"])
    assert d["scaling_efficiency"] == pytest.approx((d["compute_us"] + d["update_us"]) / d["step_time_us"])


def test_the_table_tells_what_was_asked_and_the_best(ranking):
    """A row for each strategy, then the parts of the best and what it reduced when."""
    lines = step_table(ranking).splitlines()
    best = ranking.best.step
    rows = [line.split()[:2] for line in lines[10:12]]

    assert "# a question" == lines[0]
    assert "# compute      4 a GPU: 1.715 ms forward, 3.285 ms backward, 1.000 ms for the update" in lines[3]
    assert [["1", best.method], ["2", ranking.candidates[1].step.method]] == rows
    assert f"{best.method}: a step takes {best.seconds * 1e3:.3f} ms" in lines[13]
    assert ["1", *best_names(ranking)] == lines[-len(best.buckets)].split()[:4]


def best_names(ranking):
    """Of the first bucket: how many gradients, from which to which."""
    names = [g.name for g in ranking.scenario.workload.gradients]
    gradients = ranking.best.step.buckets[0].gradients
    return [f"{len(gradients)}:", names[gradients[-1]], "to"]
