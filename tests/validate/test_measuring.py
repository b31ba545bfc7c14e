"""What measured times are worth: intervals that hold the median as often as they say, drift,
outliers; and the file of them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, strategies as st
from simreduce_validate.measuring import (
    Forecast,
    Interval,
    common_factor,
    median_interval,
    noise,
    open_record,
    outliers,
    ratio_interval,
    read_record,
    time_in_rounds,
)
from simreduce_validate.measuring.provenance import cpu_model, memory, processors, provenance
from simreduce_validate.running.computer import this_computer

from simreduce.errors import InputError

times = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=30).map(np.array)


@pytest.mark.parametrize("count", [6, 10, 20, 50])
@pytest.mark.parametrize(
    "draw",
    [lambda g, n: g.lognormal(0.0, 0.5, n), lambda g, n: 1.0 + g.exponential(0.3, n)],
    ids=["lognormal", "exponential"],
)
def test_intervals_hold_the_median_as_often_as_they_say(count, draw):
    """95 % are asked for."""
    generator = np.random.default_rng(1)
    true = float(np.median(draw(generator, 200_001)))
    held = [
        median_interval(draw(generator, count), resamples=300, seed=i).holds(true)
        for i in range(400)
    ]

    assert 0.90 <= np.mean(held) <= 0.99


def test_intervals_shrink_with_the_root_of_the_samples():
    generator = np.random.default_rng(2)
    widths = []
    for count in (40, 640):
        found = [
            median_interval(generator.lognormal(0.0, 0.3, count), resamples=400) for _ in range(40)
        ]
        widths.append(np.mean([each.high - each.low for each in found]))

    assert 3.2 < widths[0] / widths[1] < 4.8


@given(times)
def test_an_interval_holds_the_median_and_lies_within_the_samples(samples):
    found = median_interval(samples, resamples=200)

    assert found.value == np.median(samples)
    assert samples.min() <= found.low <= found.value <= found.high <= samples.max()
    assert found == median_interval(samples, resamples=200)


def test_few_samples_say_no_more_than_their_range():
    assert Interval(2.0, 1.0, 9.0) == median_interval(np.array([1.0, 2.0, 9.0]))


def test_what_disturbs_a_round_cancels_in_a_ratio():
    """Rounds differ tenfold, candidates by 10 %: medians alone could not tell, rounds drawn
    together do.
    """
    generator = np.random.default_rng(3)
    disturbed = generator.choice([1.0, 10.0], 41)
    ours, theirs = 1.1 * disturbed, disturbed
    found = ratio_interval(ours, theirs)

    assert found.low == pytest.approx(1.1) == found.high
    assert median_interval(ours).low < median_interval(theirs).high
    with pytest.raises(ValueError, match="41 and 40 samples"):
        ratio_interval(ours, theirs[:40])


@pytest.mark.parametrize("count", [6, 10, 20, 50])
def test_a_common_factor_is_found_as_often_as_its_interval_says(count):
    """Three plans that took 1, 2 and 30 ms take 1.3 times as long, each with noise of its own and
    that of the round.
    """
    generator = np.random.default_rng(6)
    then = np.array([1e-3, 2e-3, 30e-3])
    found = []
    for seed in range(300):
        noise_of = generator.lognormal(0.0, 0.2, (3, count)) * generator.lognormal(0.0, 0.1, count)
        found.append(
            common_factor([*(1.3 * then[:, None] * noise_of)], then, resamples=300, seed=seed)
        )

    assert 1.3 == pytest.approx(np.median([each.value for each in found]), rel=0.02)
    assert 0.9 <= np.mean([each.holds(1.3) for each in found])
    assert count <= 9 or np.mean([each.holds(1.3) for each in found]) <= 0.99
    assert all(each.low <= each.value <= each.high for each in found)


def test_plans_that_change_in_opposite_ways_have_no_common_factor():
    """Half as long and twice as long: the geometric mean is 1, whichever plan takes longest."""
    found = common_factor([np.full(12, 5e-6), np.full(12, 4.0)], [10e-6, 2.0])

    assert [1.0] * 3 == pytest.approx([found.value, found.low, found.high])
    assert 2.0 == pytest.approx(
        common_factor([np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0])], [1.0]).value
    )
    few = common_factor([np.full(5, 2.0)], [1.0])
    assert (pytest.approx(2.0), 0.0, np.inf) == (few.value, few.low, few.high)
    with pytest.raises(ValueError, match="not of the same rounds"):
        common_factor([np.ones(5), np.ones(6)], [1.0, 1.0])


def test_drift_is_found_where_it_is():
    generator = np.random.default_rng(4)
    steady = generator.lognormal(0.0, 0.05, (200, 30))
    rising = steady * np.linspace(1.0, 1.2, 30)
    jumping = steady * np.repeat([1.0, 0.9], 15)

    assert 0.1 > np.mean([noise(each, resamples=300).drifts for each in steady])
    assert 0.95 < np.mean([noise(each, resamples=300).drifts for each in rising])
    assert 0.95 < np.mean([noise(each, resamples=300).drifts for each in jumping])
    assert -0.1 == pytest.approx(
        np.mean([noise(each, resamples=50).drift.value for each in jumping]), abs=0.01
    )


def test_few_samples_show_no_drift():
    found = noise(np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]))

    assert 1.0 == found.drift.value
    assert not found.drifts


def test_outliers_are_counted_and_kept():
    samples = np.array([1.00, 1.01, 0.99, 1.02, 0.98, 5.0, 1.0, 1.01, 0.2])

    assert [5, 8] == outliers(samples)
    assert (5, 8) == noise(samples).outliers
    assert 5.0 == median_interval(samples[5:6]).value
    assert noise(samples).spread == pytest.approx(1.4826 * 0.01, rel=1e-6)
    assert [] == outliers(np.array([1.0, 1.0, 1.0, 7.0]))
    normal = np.random.default_rng(5).normal(9.0, 1.0, (500, 50))
    assert 1e-4 > sum(len(outliers(row)) for row in normal) / normal.size


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [np.inf]])
def test_what_are_no_times_is_refused(samples):
    for function in (median_interval, noise):
        with pytest.raises(ValueError, match="above 0"):
            function(np.array(samples))


class Clock:
    """A candidate that takes what a shared clock says, and notes its turns."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def time(self, repetitions):
        self.log += [self.name] * repetitions
        return np.arange(len(self.log) - repetitions, len(self.log)) + 1.0


def test_candidates_take_turns():
    log, notes = [], []
    first, second = time_in_rounds(
        [Clock("A", log), Clock("B", log)], 3, warmup=2, note=lambda *each: notes.append(each)
    )

    assert ["A", "A", "B", "B", *"ABABAB"] == log
    assert [5, 7, 9] == first.tolist()
    assert [6, 8, 10] == second.tolist()
    assert [(0, 0, 5), (1, 0, 6), (0, 1, 7), (1, 1, 8), (0, 2, 9), (1, 2, 10)] == notes


def test_steps_in_a_row_make_one_sample():
    """The first half of them only settles what the others left behind."""
    log = []
    first, second = time_in_rounds([Clock("A", log), Clock("B", log)], 2, warmup=0, settled=(3, 1))

    assert [*"AAAAAABB" * 2] == log
    assert [5, 13] == first.tolist()
    assert [8, 16] == second.tolist()


RING = Forecast("ring", 4096, 1024, "float32", "sum", "abc", 12.5)
OTHER = Forecast("CollectiveReduceV2", 4096, 1024, "float32", "sum", "", None)
CONTROL = Forecast("copies", 64, 16, "float32", "sum", "def", None, None, 4.5, (4096, 8192))


def test_a_file_has_predictions_before_it_has_samples(tmp_path):
    path = tmp_path / "result.jsonl"
    with open_record(path, {"where": "here"}, [RING, OTHER, CONTROL]) as record:
        before = read_record(path)
        record.sample(0, 0, 2e-3)
        record.sample(1, 0, 3e-3)
        record.sample(0, 1, 4e-3)
        record.checked(0, ["gpu0 is wrong"])
        meanwhile = read_record(path)
    after = read_record(path)

    assert ({"where": "here"}, (RING, OTHER, CONTROL), False) == (
        before.provenance,
        before.forecasts,
        before.complete,
    )
    assert [0, 0, 0] == [len(each) for each in before.seconds]
    assert [[2e-3, 4e-3], [3e-3], []] == [
        pytest.approx(each.tolist()) for each in meanwhile.seconds
    ]
    assert (("gpu0 is wrong",), None, None) == meanwhile.faults
    assert [False, True] == [meanwhile.complete, after.complete]


def test_what_a_sample_is_is_kept_by_candidate(tmp_path):
    path = tmp_path / "result.jsonl"
    with open_record(path, {}, [RING, OTHER]) as record:
        before = read_record(path).settled
        record.settled(1, 6)
        record.settled(0, 0)
        after = read_record(path).settled

    assert ((None, None), (0, 6)) == (before, after)


def test_what_was_measured_before_a_fault_is_kept(tmp_path):
    path = tmp_path / "result.jsonl"
    with suppress(KeyboardInterrupt), open_record(path, {}, [RING]) as record:
        record.sample(0, 0, 1.0)
        raise KeyboardInterrupt
    text = path.read_text("utf-8")
    path.write_text(text + '{"record": "sample", "id": 0, "rou', "utf-8")
    found = read_record(path)

    assert [1.0] == found.seconds[0].tolist()
    assert not found.complete


def test_results_are_not_overwritten(tmp_path):
    path = tmp_path / "result.jsonl"
    path.write_text("mine", "utf-8")
    with pytest.raises(InputError, match="exists, and"), open_record(path, {}, []):
        pass
    with (
        pytest.raises(InputError, match="cannot be written"),
        open_record(tmp_path / "no" / "file", {}, []),
    ):
        pass

    assert "mine" == path.read_text("utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: [], ":1: is no result file"),
        (lambda lines: lines[1:], ":1: is no result file"),
        (lambda lines: [lines[0], "{", *lines[1:]], ":2: is no JSON document"),
        (lambda lines: [*lines, "[]"], ":5: is no document with a `record`"),
        (lambda lines: [*lines, '{"record": "sample", "id": 7, "us": 1}'], ":5: sample: "),
        (
            lambda lines: [*lines, '{"record": "sample", "id": 0, "us": 0}'],
            ":5: sample: a time is above 0",
        ),
        (lambda lines: [*lines, '{"record": "candidate", "id": 1}'], ":5: candidate: "),
    ],
)
def test_a_damaged_file_is_told_by_its_line(tmp_path, damage, message):
    path = tmp_path / "result.jsonl"
    with open_record(path, {}, [RING]):
        pass
    lines = damage(path.read_text("utf-8").splitlines())
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    with pytest.raises(InputError) as error:
        read_record(path)

    assert f"{path}{message}" in str(error.value)


def test_provenance_says_what_it_ran_on():
    found = provenance({"tensorflow": "2.99", "gpus": "", "links": "two"}, {"route": "session"})
    json.dumps(found, allow_nan=False)

    assert {"simreduce", "python", "tensorflow", "kernel", "numpy"} <= found["versions"].keys()
    assert "2.99" == found["versions"]["tensorflow"]
    assert ("session", "two") == (found["settings"]["route"], found["settings"]["links"])
    assert found["hardware"]["cores"] >= 1
    assert "AMD EPYC" == cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n")
    assert 2048 == memory("MemFree: 1 kB\nMemTotal:       2 kB\n")
    assert ("", None) == (cpu_model(""), memory(""))


def test_cores_are_told_of_each_computer_that_has_workers():
    """Of this one's own workers nothing is told besides: their cores are the same."""
    here, there = (
        {"address": f"{name}:1", "name": name, "cores": cores}
        for name, cores in (("a", 8), ("b", 16))
    )
    found = [
        processors({"cpu": "a CPU", "usable_cores": 8, "workers": workers})
        for workers in ([], [here, here], [here, there])
    ]

    assert [
        "a CPU, 8 cores",
        "a CPU, 8 cores",
        "a CPU, 8 cores; workers: a:1 8 cores, b:1 16 cores",
    ] == found
    assert [here] == provenance({"workers": [here]}, {})["hardware"]["workers"]
    assert [] == provenance({}, {})["hardware"]["workers"]


def test_a_computer_has_one_name_and_the_cores_that_a_process_may_use():
    cores = os.sched_getaffinity(0)
    one = this_computer()
    try:
        os.sched_setaffinity(0, {min(cores)})
        fewer = this_computer()
    finally:
        os.sched_setaffinity(0, cores)

    assert one.name == fewer.name != ""
    assert (len(cores), 1) == (one.cores, fewer.cores)
