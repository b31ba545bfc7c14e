"""What predictions were worth, on rows made by hand; and timelines that say what was predicted."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from simreduce_validate.accuracy import CandidateOrder, assess
from simreduce_validate.cases import Case, Control, Timing
from simreduce_validate.measuring import Interval
from simreduce_validate.report.accuracy import accuracy_document, accuracy_lines
from simreduce_validate.running import Measurement
from simreduce_validate.running.program import Event
from simreduce_validate.transfers import transfers

from simreduce.engine import Calibration, Processor
from simreduce.engine.setup import Setup
from simreduce.engine.simulator import step_cost
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.sizes import tensor
from tests.validate.devices import devices

ROUNDS = np.linspace(0.9, 1.1, 21)


def row(name, measured, predicted, nbytes=1024, repeats=None, rounds=ROUNDS):
    """`measured` and `predicted` in milliseconds; the samples are `measured` times `rounds`."""
    case = Case(name, None, nbytes // 4, 0, "sum", predicted * 1e-3, repeats)
    return Timing(case, Measurement(rounds * measured * 1e-3, (), (), None))


def test_regret_is_what_the_chosen_one_takes_over_the_best():
    """`a` is predicted to be fastest and takes 3 ms; `b` takes 2."""
    (size,) = assess([row("a", 3, 1), row("b", 2, 2), row("c", 4, 5)]).sizes

    assert ("a", "b") == (size.chosen, size.best)
    assert 0.5 == pytest.approx(size.regret.value)
    assert CandidateOrder(2, 3) == size.order == size.certain
    assert 0.5 == pytest.approx(size.rank)


def test_errors_are_of_all_rows():
    """-50 %, 0, +25 % and +100 %."""
    rows = [row("a", 2, 1), row("b", 2, 2), row("a", 4, 5, 4096), row("b", 4, 8, 4096)]
    found = assess(rows)

    assert [-0.5, 0.0, 0.25, 1.0] == pytest.approx([each.error for each in rows])
    assert 0.375 == pytest.approx(found.median_error)
    assert 0.85 == pytest.approx(found.p90_error)
    assert [1024, 4096] == [size.nbytes for size in found.sizes]


def test_wrong_results_are_no_candidates():
    """However fast they are; how many there are is told."""
    fast = row("wrong", 1, 1)
    wrong = replace(fast, measured=replace(fast.measured, wrong=("not the sum",)))
    found = assess([wrong, row("a", 2, 2), row("b", 3, 3)])

    assert ("a", "a") == (found.sizes[0].chosen, found.sizes[0].best)
    assert Interval(0.0, 0.0, 0.0) == found.sizes[0].regret
    assert 1 == found.wrong
    assert any("1 with wrong results" in line for line in accuracy_lines(found))
    assert assess([wrong]) is None


def test_regret_over_sizes():
    rows = []
    for nbytes, chosen in ((64, 1.0), (256, 1.1), (1024, 2.0)):
        rows += [row("a", chosen, 1, nbytes), row("b", 1, 2, nbytes)]
    found = assess(rows)

    assert [0.0, 0.1, 1.0] == pytest.approx([size.regret.value for size in found.sizes])
    assert 0.1 == pytest.approx(found.median_regret)
    assert 1.0 == pytest.approx(found.worst_regret)


def test_what_is_hardly_apart_has_no_order():
    """3 % apart, and predicted the wrong way round: no pair, and little regret."""
    (size,) = assess([row("a", 1.03, 1), row("b", 1, 2)]).sizes

    assert CandidateOrder(0, 0) == size.order == size.certain
    assert 0.03 == pytest.approx(size.regret.value)


def scattered(seed, by):
    """Factors of rounds whose median is 1."""
    found = np.random.default_rng(seed).lognormal(0.0, by, 21)
    return found / np.median(found)


def test_what_disturbs_whole_rounds_hides_nothing():
    """Rounds differ by half, candidates by 10 % in each: that is certain. The prediction is the
    wrong way round.
    """
    rounds = scattered(1, 0.5)
    (size,) = assess([row("a", 1.1, 1, rounds=rounds), row("b", 1, 2, rounds=rounds)]).sizes

    assert CandidateOrder(0, 1) == size.order == size.certain
    assert 0.1 == pytest.approx(size.regret.low) == pytest.approx(size.regret.high)


def test_what_scatters_has_an_order_by_medians_only():
    """10 % apart by medians, and as far from themselves in every other round: regret that is not
    certain costs nothing.
    """
    rows = [row("a", 1.1, 1, rounds=scattered(1, 0.3)), row("b", 1, 2, rounds=scattered(2, 0.3))]
    found = assess(rows)
    (size,) = found.sizes

    assert (CandidateOrder(0, 1), CandidateOrder(0, 0)) == (size.order, size.certain)
    assert 0.1 == pytest.approx(size.regret.value)
    assert size.regret.high > 0.1
    assert 0.0 == size.regret.low == found.worst_cost < found.worst_regret


def test_five_percent_and_not_more_is_never_certain():
    """The rounds leave nothing open, but 4 % is hardly apart however well it is known."""
    (size,) = assess([row("a", 1.04, 2), row("b", 1, 1), row("c", 1.2, 3)]).sizes

    assert CandidateOrder(2, 2) == size.certain


def test_of_equal_candidates_no_regret_is_certain():
    """Eight that are equal but for noise: whichever was predicted, another seems faster. At most
    2.5 % of runs may say for certain that it is, over all sizes together; each comparison by itself
    says so in 20 % and more of these.
    """
    generator = np.random.default_rng(11)
    certain = []
    for _ in range(30):
        rows = [
            row(name, 1, place + 1, nbytes, rounds=generator.lognormal(0.0, 0.1, 20))
            for nbytes in (64, 1024)
            for place, name in enumerate("abcdefgh")
        ]
        found = assess(rows)
        certain.append(found.worst_cost > 0)
        assert all(
            0 <= size.regret.low <= size.regret.value <= size.regret.high for size in found.sizes
        )

    assert sum(certain) <= 2  # of 30: more are as rare as one in 25


@pytest.mark.parametrize(
    ("rounds", "sure"), [(1, False), (3, False), (5, False), (6, True), (20, True)]
)
def test_few_rounds_make_nothing_certain(rounds, sure):
    """The range of five samples holds their median with 94 %, that of six with 97 %, however far
    apart candidates are.
    """
    even = np.ones(rounds)
    rows = [
        row("a", 3, 1, rounds=even),
        row("b", 1, 2, rounds=even),
        row("a", 3, 1, repeats=0, rounds=even),
    ]
    found = assess(rows)
    (size,) = found.sizes
    said = accuracy_document(found)["sizes"][0]

    assert (CandidateOrder(0, 1), CandidateOrder(0, int(sure))) == (size.order, size.certain)
    assert 2.0 == pytest.approx(size.regret.value)
    assert (2.0 if sure else 0.0) == pytest.approx(found.worst_cost)
    assert sure == size.regret.bounded == size.floor.bounded
    assert [sure] * 4 == [
        said[key] is not None
        for key in ("regret_low", "regret_high", "noise_floor_low", "noise_floor_high")
    ]
    assert (0 if sure else 2) == accuracy_lines(found)[1].count("too few rounds for bounds")


def test_more_comparisons_need_more_rounds():
    """Six are enough for one; with eight others, 95 % of all together are 99.4 % of each, which the
    range of eight does not reach.
    """
    for count, sure in ((8, False), (9, True)):
        even = np.ones(count)
        found = assess([row(str(i), 3 - i * 0.1, i, rounds=even) for i in range(9)])

        assert sure == found.sizes[0].regret.bounded


def test_what_is_predicted_alike_is_in_no_order():
    """However the rows stand. Of those predicted to be fastest, the first by name is taken."""
    rows = [row("a", 1, 5), row("b", 2, 5), row("c", 3, 6)]

    for given in permutations(rows):
        (size,) = assess(given).sizes
        assert CandidateOrder(2, 3) == size.order == size.certain
        assert "a" == size.chosen


def test_the_order_of_rows_says_nothing():
    rows = [
        row(name, measured, predicted, rounds=scattered(seed, 0.1))
        for seed, (name, measured, predicted) in enumerate(
            [("a", 2, 1), ("b", 1.9, 1), ("c", 3, 4), ("d", 2.5, 4)]
        )
    ]
    rows.append(replace(rows[0], case=replace(rows[0].case, repeats=0)))

    assert 1 == len({repr(assess(given)) for given in permutations(rows)})


@pytest.mark.parametrize("shift", [0.97, 1.0, 1.2])
def test_the_noise_floor_is_what_a_candidate_differs_by_from_itself(shift):
    rows = [row("a", 2, 1), row("b", 4, 3), row("a", 2 * shift, 1, repeats=0)]
    (size,) = assess(rows).sizes

    assert [shift - 1] * 3 == pytest.approx([size.floor.value, size.floor.low, size.floor.high])
    assert f"noise floor {shift - 1:+.1%}" in accuracy_lines(assess(rows))[1]
    assert shift - 1 == pytest.approx(accuracy_document(assess(rows))["sizes"][0]["noise_floor"])
    assert assess(rows[:2]).sizes[0].floor is None


@pytest.mark.parametrize(
    ("predicted", "rank"), [((1, 2, 3, 4), 1.0), ((4, 3, 2, 1), -1.0), ((1, 3, 2, 4), 0.8)]
)
def test_rank_is_spearman_s(predicted, rank):
    """1 - 6 sum(d^2) / (n (n^2 - 1))."""
    (size,) = assess(
        [row(name, i + 1, p) for i, (name, p) in enumerate(zip("abcd", predicted, strict=True))]
    ).sizes

    assert rank == pytest.approx(size.rank)
    assert 6 == size.order.pairs


@pytest.mark.parametrize(
    "rows", [[row("a", 1, 2)], [row("a", 1, 2), row("b", 3, 2)], [row("a", 1, 2), row("b", 1, 3)]]
)
def test_no_rank_where_nothing_differs(rows):
    (size,) = assess(rows).sizes

    assert math.isnan(size.rank)
    assert accuracy_document(assess(rows))["sizes"][0]["rank_correlation"] is None


@pytest.mark.parametrize(("own", "expected"), [(3.0, 0.5), (1.0, 0.0)])
def test_tensorflow_s_own_choice_has_a_regret_and_is_no_candidate(own, expected):
    """Over the fastest of all. Which of ours is chosen is judged among ours."""
    rows = [row("a", 2, 1), row("b", 4, 3), row("theirs", own, 0.5)]
    (size,) = assess(rows, "theirs").sizes

    assert expected == pytest.approx(size.default)
    assert ("a", "a", 0.0, 1) == (size.chosen, size.best, size.regret.value, size.order.pairs)
    assert any(
        f"TensorFlow's own is {expected:+.1%}" in line
        for line in accuracy_lines(assess(rows, "theirs"))
    )


def test_tensorflow_s_own_choice_without_a_prediction():
    rows = [row("a", 2, 1), row("theirs", 3, math.nan)]
    found = assess(rows, "theirs")

    assert 0.5 == pytest.approx(found.sizes[0].default)
    assert 0.5 == pytest.approx(found.median_error)
    assert math.isnan(assess(rows).sizes[0].default)


def test_what_is_measured_twice_counts_once():
    rows = [row("a", 2, 2), row("b", 3, 3)]

    (once,), (twice,) = assess(rows).sizes, assess([*rows, row("a", 20, 2, repeats=0)]).sizes

    assert repr(once) == repr(replace(twice, floor=None))


def test_nothing_is_judged_without_predictions():
    assert assess([row("a", 1, math.nan)]) is None
    assert assess([]) is None
    assert [] == accuracy_lines(None)
    assert accuracy_document(None) is None


def control(kind, nbytes, then, now, beside, rounds=ROUNDS, wrong=()):
    """`then` and `now` in milliseconds; the samples are `now` times `rounds`."""
    case = Case(kind, None, nbytes // 4, 0, "sum", math.nan, control=Control(then * 1e-3, beside))
    return Timing(case, Measurement(rounds * now * 1e-3, wrong, (), None))


def test_what_all_plans_take_longer_is_told_beside_the_error():
    """Candidates take 30 % and 50 % longer than predicted. Controls do 50 %, so that one is right
    but for that, and the other is 1.5 / 1.3 of what was measured.
    """
    rows = [row("a", 3, 2), row("b", 1.3, 1)]
    there = [control("copies", 65536, 2, 3, (1024,)), control("sums", 4096, 1, 1.5, (1024,))]
    plain, found = assess(rows), assess([*rows, *there])
    (size,) = found.sizes

    assert 0.5 == pytest.approx(found.drift.since.value)
    assert found.drift.since.holds(0.5)
    assert ("copies of 64 KiB", "sums of 4 KiB") == found.drift.controls == size.drift.controls
    assert (1 - 2 / 3 + 1 - 1 / 1.3) / 2 == pytest.approx(found.drift.median_error)
    assert (1.5 / 1.3 - 1) / 2 == pytest.approx(found.drift.median_rest)
    assert 0.9 * (1.5 / 1.3 - 1) == pytest.approx(found.drift.p90_rest)
    assert repr(plain) == repr(replace(found, drift=None, sizes=(replace(size, drift=None),)))


def test_what_controls_took_then_is_judged_as_a_prediction_of_them():
    """They take half, as long, and 25 % longer: what they took then is too long by 100 %, right,
    and too short by 20 %.
    """
    there = [
        control(kind, 1024, 1, now, (1024,))
        for kind, now in (("chains", 0.5), ("copies", 1), ("sums", 1.25))
    ]
    found = assess([row("a", 2, 1), *there])

    assert (-0.5, 0.0, 0.25) == pytest.approx(found.drift.each)
    assert 0.2 == pytest.approx(found.drift.median_repeat)
    assert 0.2 + 0.8 * 0.8 == pytest.approx(found.drift.p90_repeat)
    assert 0.625 ** (1 / 3) - 1 == pytest.approx(found.drift.since.value)
    assert (
        "of chains of 1 KiB -50.0%, copies of 1 KiB +0.0%, sums of 1 KiB +25.0%; "
        in accuracy_lines(found)[-1]
    )


def test_controls_are_no_candidates():
    """However fast they are, and whatever is wrong with them."""
    rows = [row("a", 3, 1), row("b", 2, 2)]
    there = [
        control("copies", 1024, 0.1, 0.1, (1024,)),
        control("sums", 1024, 9, 9, (1024,), wrong=("no sum",)),
    ]
    plain, found = assess(rows), assess([*there, *rows])

    assert repr(plain.sizes) == repr(tuple(replace(size, drift=None) for size in found.sizes))
    assert 0 == found.wrong
    assert assess(there) is None


def test_a_control_with_faults_shows_nothing():
    rows = [row("a", 2, 1)]
    right = control("copies", 1024, 1, 2, (1024,))
    wrong = control("sums", 1024, 1, 50, (1024,), wrong=("not the sum",))

    assert 1.0 == pytest.approx(assess([*rows, right, wrong]).drift.since.value)
    assert ("copies of 1 KiB",) == assess([*rows, right, wrong]).drift.controls
    assert assess([*rows, wrong]).drift is None


def test_a_control_counts_at_the_sizes_in_whose_rounds_it_was():
    """One beside two sizes, one beside the third, none beside the last; each counts once."""
    sizes = (64, 256, 1024, 4096)
    rows = [row("a", 2, 1, nbytes) for nbytes in sizes]
    there = [control("chains", 4, 1, 2, (64, 256)), control("copies", 1 << 20, 1, 4, (1024,))]
    found = assess([*rows, *there])
    said = accuracy_lines(found)

    assert [1.0, 1.0, 3.0, None] == [
        size.drift and pytest.approx(size.drift.since.value) for size in found.sizes
    ]
    assert [0.0, 0.0, 1.0] == [
        pytest.approx(size.drift.median_rest) for size in found.sizes if size.drift
    ]
    assert (1.0, 3.0) == pytest.approx(found.drift.each)
    assert 8**0.5 - 1 == pytest.approx(found.drift.since.value)
    assert 0.625 == pytest.approx(found.drift.median_repeat)
    assert 0.0 == pytest.approx(found.drift.median_rest)
    assert "timed again at 3 of 4 sizes, " in said[1]
    assert [f"controls, {nbytes}" for nbytes in ("64 B", "256 B", "1.024 kB")] == [
        line[: line.index(": ")] for line in said[2:]
    ]
    assert (None, 1.0) == (
        accuracy_document(found)["sizes"][3]["controls"],
        accuracy_document(found)["sizes"][0]["controls"]["since"],
    )


def test_errors_without_what_controls_show_stand_beside_those_of_the_same_candidates():
    """Of two sizes, only the first has controls: there |error| is 50 %, at the other one 75 %."""
    rows = [row("a", 2, 1), row("a", 4, 1, 4096)]
    there = [control("copies", 65536, 1, 2, (1024,))]
    (line,) = [each for each in accuracy_lines(assess([*rows, *there])) if "timed again" in each]

    assert "|error| of the candidates beside them 50.0% in the median; " in line
    assert "; without the drift 0.0% in the median, 0.0% at the 90th percentile" in line


def test_nothing_is_said_of_controls_without_any():
    found = assess([row("a", 2, 1), row("b", 3, 2)])

    assert found.drift is None
    assert accuracy_document(found)["controls"] is None
    assert not any("controls" in line for line in accuracy_lines(found))


def test_few_rounds_bound_no_drift():
    even = np.ones(5)
    found = assess(
        [row("a", 2, 1, rounds=even), control("copies", 1024, 1, 2, (1024,), rounds=even)]
    )

    assert 1.0 == pytest.approx(found.drift.since.value)
    assert not found.drift.since.bounded
    assert accuracy_document(found)["controls"]["since_high"] is None
    assert "(too few rounds for bounds)" in accuracy_lines(found)[1]


SLOW = Calibration(
    "slow", dispatch={"copy": 1e-5}, step=2e-3, cpu=Processor(cores=2.0, moving=2.0, message=1e-3,
    rates={"transfer": 1e9})
)  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[{}, {"backend": "cluster"}, {"backend": "shaped", "rate": "50mbit", "delay": "5ms"}],
)
def step(request):
    """A plan, its setup, and the timeline that is predicted for it: op by op, from the first on."""
    stage = devices("switch:3", **request.param).stage
    plan = stage.adapt(compile_plan("ring", tensor(1 << 16, 0), stage.layout))
    setup = Setup(stage.machine, calibration=SLOW)
    result = setup.simulate(plan)
    before = step_cost(plan, setup.machine, setup.runtime, SLOW)
    events = [
        Event(
            plan.devices[plan.device[op]], f"op{op}", float(start) - before, float(finish) - before
        )
        for op, (start, finish) in enumerate(zip(result.start, result.finish, strict=True))
    ]
    return plan, setup, events


def test_a_timeline_as_predicted_has_no_residuals(step):
    """Whatever its clock says when it begins."""
    plan, setup, events = step
    later = [each._replace(start=each.start + 7, finish=each.finish + 7) for each in events]
    for timeline in (events, later):
        found = transfers(plan, setup, timeline)

        assert plan.transfers == len(found) > 0
        assert [0.0] * len(found) == pytest.approx([each.residual for each in found], abs=1e-9)
    assert [each.measured for each in found] == sorted(each.measured for each in found)


def test_a_transfer_that_was_late_has_a_residual_of_its_own(step):
    plan, setup, events = step
    one = transfers(plan, setup, events)[1].op
    late = [each._replace(finish=each.finish + 0.25 * (each.name == f"op{one}")) for each in events]
    residuals = {each.op: each.residual for each in transfers(plan, setup, late)}

    assert -0.25 == pytest.approx(residuals.pop(one))
    assert [0.0] * len(residuals) == pytest.approx(list(residuals.values()), abs=1e-9)


def test_what_a_timeline_does_not_show_is_left_out(step):
    plan, setup, events = step
    one = transfers(plan, setup, events)[0]
    rest = transfers(plan, setup, [each for each in events if each.name != f"op{one.op}"])

    assert one.op not in {each.op for each in rest}
    assert plan.transfers - 1 == len(rest)
    assert [] == transfers(plan, setup, [])
    assert one.source != one.target
    assert one.nbytes == plan.nbytes[one.op]
