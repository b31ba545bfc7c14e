"""Steps as text and as documents."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simreduce.engine import CALM, Disturbance, Fault
from simreduce.report.blocks import Attachments, timeline, timeline_of_threads, timeline_plot
from simreduce.report.step_page import _buckets, _times_of_steps, step_page, step_text
from simreduce.report.steps import step_document, step_rows
from simreduce.report.trace import step_threads
from simreduce.study.scenario_files import load_meshes, load_scenario
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.steps import rank_steps
from simreduce.training import Bucket, Span, StepResult


def step(
    *, spans: tuple[Span, ...] = (), buckets: tuple[Bucket, ...] = (), seconds: float = 16.0
) -> StepResult:
    return StepResult(
        "test",
        2,
        8,
        seconds,
        (("compute", 10.0),),
        buckets=buckets,
        spans=spans,
        simulated=(seconds,),
    )


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


def test_tracks_of_a_plot_have_the_spans_of_devices_and_of_buckets():
    spans = (Span("gpu0", "a", False, 0.0, 4.0), Span("gpu0", "a", True, 4.0, 9.4))
    threads = step_threads(step(spans=spans, buckets=(bucket(8.0, 12.0),)), ["a", "b"])
    plot = timeline_plot(timeline_of_threads(threads), "title", "subtitle")
    (facet,) = plot.facets

    assert ["gpu0", "reductions"] == facet.y.names
    assert {
        "forward": [(0.0, 4.0, "gpu0")],
        "backward": [(4.0, 9.4, "gpu0")],
        "reductions": [(8.0, 12.0, "reductions")],
    } == {
        series.name: [
            (pytest.approx(point.low), pytest.approx(point.x), facet.y.names[point.y])
            for point in series.points
        ]
        for series in facet.series
    }
    assert all(f">{name}<" in plot.svg() for name in ("gpu0", "forward", "backward", "time"))


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
    return rank_steps(scenario)


def test_the_document_has_the_keys_that_others_rely_on(ranking):
    """In microseconds, and it is JSON."""
    document = json.loads(json.dumps(step_document(ranking)))
    best = ranking.recommended.step

    assert [
        best.seconds * 1e6,
        best.compute * 1e6,
        best.communication * 1e6,
        best.exposed * 1e6,
    ] == [document[key] for key in ("step_time_us", "compute_us", "communication_us", "exposed_us")]
    assert (best.samples_per_second, "step", "mine", 4, 4) == tuple(
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
    assert d["scaling_efficiency"] == pytest.approx(6000.0 / d["step_time_us"])


def test_the_table_tells_what_was_asked_and_the_best(ranking):
    """A row for each strategy, then the parts of the best and what it reduced when."""
    lines = step_text(ranking).splitlines()
    best = ranking.recommended.step
    figures = lines.index("") + 1
    asked = lines.index("", figures) + 1
    heads = lines.index("#") + 1
    rows = [line.split()[:2] for line in lines[heads + 2 : heads + 4]]

    assert "# a question" == lines[0]
    assert lines[1].startswith("Recommended: ")
    assert lines[figures - 2].startswith(
        "  of the settings ranked here; `simreduce tune FILE --target horovod`"
    )
    assert f"{best.method}: a step takes {best.seconds * 1e3:.3f} ms" in lines[figures]
    assert (
        "# compute      4 a GPU: 1.715 ms forward, 3.285 ms backward, 1.000 ms for the update"
        in lines[asked + 2]
    )
    assert [["1", best.method], ["2", ranking.candidates[1].step.method]] == rows
    assert ["1", *best_names(ranking)] == lines[-len(best.buckets)].split()[:4]

    few = step_text(ranking, details=False).splitlines()
    assert lines[: heads + 4] == few[: heads + 4]
    assert (
        "its critical path, what would help, its timeline and buckets: --details shows them" in few
    )


def asked(
    tmp_path, step: str, disturbance: Disturbance = CALM, topology: str = "full:2,bandwidth=1GB/s"
):
    """The table and the document of a scenario with one strategy."""
    path = tmp_path / "mine.toml"
    path.write_text(
        f'topology = "{topology}"\nworkload = "bytes:1MB"\nruntime = "ideal"\n{step}', "utf-8"
    )
    scenario = load_scenario(str(path))
    found = rank_steps(scenario.but(disturbance=disturbance))
    return step_text(found), step_document(found)


RING = 'strategies = ["ring"]\n[step]\nbatch = 10\ntime = "100 ms"\n'


def test_a_slow_gpu_is_not_counted_as_work_of_the_others(tmp_path):
    """Alone, one GPU has 100 samples/s and the other 50; together both have 50."""
    text, document = asked(tmp_path, RING, Disturbance(slow={"gpu1": 2.0}))

    assert 20 / 0.2 == pytest.approx(document["images_per_second"], rel=0.02)
    assert 100 / 150 == pytest.approx(document["scaling_efficiency"], rel=0.02)
    assert (200_000, 50_000) == (document["compute_us"], pytest.approx(document["waiting_us"]))
    assert "of what 2 GPUs do if nothing moves" in text
    assert "GPUs wait 50.000 ms of the compute on average for the slowest" in text


def test_a_single_device_that_reads_its_variables_from_its_host_waits_for_them(tmp_path):
    """The reads are communication as those of many devices are."""
    step = (
        '[step]\nbatch = 1\ntime = "1 ms"\n'
        'variable_update = "parameter_server"\nlocal_parameter_device = "cpu"\n'
    )
    _, document = asked(tmp_path, step, topology="gh200")

    assert document["step_time_us"] > document["compute_us"]
    share = document["compute_us"] / document["step_time_us"]
    assert share == pytest.approx(document["scaling_efficiency"])


def test_a_single_device_with_nothing_to_move_is_fully_efficient(tmp_path):
    _, document = asked(tmp_path, RING, topology="switch:1")

    assert 1.0 == document["scaling_efficiency"]


def test_a_step_with_a_fault_is_told_beside_those_without(tmp_path):
    """The link to gpu1 is away for 100 ms, in the third step of about 101 ms."""
    faults = Fault(0.25, "gpu0>gpu1", 0.0), Fault(0.45, "gpu0>gpu1")
    text, document = asked(tmp_path, RING, Disturbance(faults=faults))
    slowest = document["slowest_us"] / 1e3

    assert document["step_time_us"] == pytest.approx(101_000, rel=0.01)
    assert slowest > 140
    assert f"The slowest step took {slowest:.3f} ms, of which" in text
    assert f"steps took {document['step_time_us'] / 1e3:.3f}, {slowest:.3f}, " in text


def test_the_longest_of_many_steps_is_always_shown():
    times = (*map(float, range(10, 20)), 99.0, *map(float, range(30, 40)), 16.0, 16.0)
    seen = [1e6 * seconds for seconds in times]
    long = {"simulated_us": seen, "step_time_us": seen[-1], "settled": True}

    assert (
        "steps took 10000.000, 11000.000, 12000.000, 13000.000, ..., 99000.000, ..., "
        "37000.000, 38000.000, 39000.000, "
        "16000.000 ms; this is the last"
    ) == _times_of_steps(long)
    never = {**long, "settled": False}
    assert (
        "this is the mean of the last 12, which took 16000.000 ms to 39000.000 ms"
        in _times_of_steps(never)
    )


def best_names(ranking):
    """Of the first bucket: how many gradients, from which to which."""
    names = [g.name for g in ranking.scenario.workload.gradients]
    gradients = ranking.recommended.step.buckets[0].gradients
    return [f"{len(gradients)}:", names[gradients[-1]], "to"]


def test_a_row_has_the_place_by_the_time_of_the_reductions_alone(ranking):
    first, second = ranking.candidates
    changed = (replace(first, alone=2.0), replace(second, alone=1.0))
    table = step_rows(replace(ranking, candidates=changed))
    at = [column.name for column in table.columns].index("# alone")

    assert ["2", "1"] == [row[at] for row in table.rows]


def test_a_bucket_says_how_long_after_the_compute_it_ends(ranking):
    best = ranking.recommended.step
    ended = max(span.end for span in best.spans)
    late = [max(each.finish - ended, 0.0) for each in best.buckets]
    lines = step_text(ranking).splitlines()[-len(late) :]

    assert late[-1] > 0.0
    assert [f"{seconds * 1e3:.3f}" for seconds in late] == [line.split()[-1] for line in lines]


def test_of_more_than_twelve_buckets_those_in_the_middle_are_counted(ranking):
    """One that is left out is counted too, so that no table is longer than that of twelve."""
    best = ranking.recommended.step
    for count, words in ((12, ["8"]), (13, ["...", "1", "more"])):
        made = replace(best, buckets=best.buckets[:1] * count)
        middle, *_, last = (line.split() for line in _buckets(made, ranking)[-5:])

        assert words == middle[: len(words)]
        assert str(count) == last[0]


def test_what_a_step_spends_its_time_on_adds_up(ranking):
    """By kind, most first, as of the step of a mesh; the path is all of it too."""
    document = step_document(ranking)
    spent = document["spent_us"]

    assert document["step_time_us"] == pytest.approx(sum(spent.values()))
    assert (document["compute_us"], document["exposed_us"]) == (spent["compute"], spent["data"])
    assert document["step_time_us"] == pytest.approx(sum(document["path_us"].values()))
    assert document["limit"] in spent


MESH = (
    'topology = "dgx-a100"\nworkload = "transformer:layers=4,hidden=1024,heads=16,vocab=51200"\n'
    '[step]\nmesh = ["tp=2,pp=2", "dp=8"]\nglobal_batch = 16\n'
)


def test_steps_with_a_mesh_and_without_say_the_same(ranking, tmp_path):
    """The same tables below the ranking, and the same sections of a page."""
    path = tmp_path / "mesh.toml"
    path.write_text(MESH, "utf-8")
    meshes = rank_meshes(load_meshes(str(path)))
    both = [ranking, meshes]
    texts = [step_text(each) for each in both]
    pages = [step_page(step_document(each), Attachments()) for each in both]

    for words in (
        "spends its time on",
        "The critical path of a step",
        "simulated again with",
        "F forward, B backward",
    ):
        assert all(words in text for text in texts)
    assert [each.key for each in pages[0].sections if each.key not in ("memory", "buckets")] == [
        each.key for each in pages[1].sections if each.key != "memory"
    ]
    assert {"What limits it?", "What would a second NIC buy?"} < {
        f.question for f in pages[1].facts
    }
