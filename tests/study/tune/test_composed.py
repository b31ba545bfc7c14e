"""Steps that are composed of calls, against whole simulations."""

from __future__ import annotations

import pytest

from simreduce.engine import NCCL
from simreduce.errors import StrategyError
from simreduce.planners.strategy import parse_strategy
from simreduce.report.step_page import step_text
from simreduce.report.steps import step_document
from simreduce.study.scenario import with_step
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.composed import ERROR, ComposedStep, is_composed
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif_steps import look_at_step
from simreduce.training import simulate_step
from simreduce.training.simulation import step_seconds
from tests.thorough import slow

LARGE = 'topology = "dgx-a100x16"\nworkload = "alexnet"\n'
STEP = '[step]\nbatch = 16\nrate = "{} TFLOP/s"\n'
FAST = '[step]\nbatch = 1\nrate = "{} TFLOP/s"\n'  # so that reductions are exposed


@pytest.fixture
def written(tmp_path):
    """A scenario that is written here."""

    def _written(text: str):
        path = tmp_path / "mine.toml"
        path.write_text(text, "utf-8")
        return with_step(load_scenario(str(path)))

    return _written


@pytest.fixture
def both(written):
    """A step that is composed, and simulated with all its calls at once."""

    def _both(text: str, strategy: str):
        scenario, parsed = written(text).but(runtime=NCCL), parse_strategy(strategy)
        setup, asked = scenario.setup, scenario.step
        composed = ComposedStep(parsed, asked.job, setup, asked.cycle)
        return composed, simulate_step(asked.job, asked.method(parsed, setup.layout), setup)

    return _both


@pytest.mark.parametrize("more", ["", "accumulate = 2\n", 'update = "1 ms"\n'])
@pytest.mark.parametrize(
    "strategy", ["nccl", "nccl+ddp", "nccl+ddp=25,view", "nccl+ddp=10,fp16", "nccl:ring+ddp=100"]
)
@pytest.mark.parametrize(
    ("machine", "step"),
    [
        ("dgx1v", STEP.format(30)),
        *slow([("dgx-a100x2", FAST.format(187.5)), ("v100-pcie-4", STEP.format(30))]),
        *slow([("p3dnx5", STEP.format(60))]),
    ],
)
def test_a_composed_step_is_the_simulated_one(both, machine, step, strategy, more):
    text = f'topology = "{machine}"\nworkload = "alexnet"\n{step}{more}'
    composed, whole = both(text, strategy)
    found = composed.step

    assert found.composed
    assert not composed.wrong
    assert found.seconds == pytest.approx(whole.seconds, rel=ERROR)
    assert whole.exposed
    assert [(b.gradients, b.ranks, b.nbytes) for b in found.buckets] == [
        (b.gradients, b.ranks, b.nbytes) for b in whole.buckets
    ]
    for one, other in zip(found.buckets, whole.buckets, strict=True):
        times = [other.ready, other.start, other.finish]
        assert [one.ready, one.start, one.finish] == pytest.approx(times, rel=ERROR)
    assert [(span.layer, span.begin) for span in found.spans] == [
        (span.layer, pytest.approx(span.begin)) for span in whole.spans
    ]
    assert (found.compute, found.update) == (whole.compute, whole.update)


def test_buffers_of_horovod_leave_with_its_cycles(both):
    composed, whole = both(
        f'topology = "dgx1v"\nworkload = "vgg16"\n{FAST.format(18.75)}cycle = "2.5 ms"\n',
        "nccl+fusion=8M",
    )

    assert composed.step.seconds == pytest.approx(whole.seconds, rel=ERROR)
    assert [b.gradients for b in composed.step.buckets] == [b.gradients for b in whole.buckets]


def test_slow_devices_are_waited_for(both):
    text = 'topology = "dgx1v"\nworkload = "alexnet"\n' + STEP.format(30)
    rates = '{ gpu3 = "20 TFLOP/s", "Tesla V100-SXM2-16GB" = "30 TFLOP/s" }'
    text = text.replace('"30 TFLOP/s"', rates)
    composed, whole = both(text, "nccl+ddp")

    assert composed.step.waiting == whole.waiting > 0
    assert composed.step.seconds == pytest.approx(whole.seconds, rel=ERROR)
    assert {span.device for span in composed.step.spans} == {span.device for span in whole.spans}


def test_large_plans_are_composed_and_the_output_says_so(written):
    strategies = 'strategies = ["nccl+ddp", "nccl"]\n'
    ranking = rank_steps(written(LARGE + strategies + FAST.format(187.5)))
    table, document = step_text(ranking), step_document(ranking)

    assert [True, True] == [c.step.composed for c in ranking.candidates]
    assert [0, 0] == [c.wrong for c in ranking.candidates]
    assert all(c.bottleneck and c.alone > 0 for c in ranking.candidates)
    assert "composed of simulated calls of NCCL, within 0.2% of simulating all at once" in table
    assert [True, True] == [row["composed"] for row in document["candidates"]]
    assert document["composed"]


@pytest.mark.slow
def test_a_composed_step_is_what_the_whole_would_be(written):
    """Of 16 machines, one of which represents all."""
    scenario = written(LARGE + 'strategies = ["nccl+ddp=25,view"]\n' + FAST.format(187.5))
    (found,) = rank_steps(scenario, with_today=False).candidates
    setup, asked = scenario.setup.but(runtime=NCCL), scenario.step
    method = asked.method(parse_strategy("nccl+ddp=25,view"), setup.layout)

    assert found.step.composed
    assert found.step.seconds == pytest.approx(step_seconds(method, asked.job, setup), rel=ERROR)


@pytest.mark.parametrize(
    ("more", "strategy"),
    [
        ("streams = 2\n", "nccl+ddp"),
        ("barrier = false\n", "nccl+ddp"),
        ("accumulate = 2\nno_sync = false\n", "nccl+ddp"),
        ("", "nccl+packs=2"),
        ("", "ring+ddp"),
        ("", "nccl+ddp+mean"),
    ],
)
def test_steps_that_do_not_take_turns_are_simulated(written, more, strategy):
    scenario = written(LARGE + STEP.format(30) + more)

    assert is_composed(written(LARGE + STEP.format(30)), parse_strategy("nccl+ddp"))
    assert not is_composed(scenario, parse_strategy(strategy))


def test_small_plans_are_simulated(written):
    scenario = written(LARGE.replace("x16", "x2") + STEP.format(30))

    assert not is_composed(scenario, parse_strategy("nccl+ddp"))


def test_what_nccl_cannot_do_is_refused(written):
    scenario = written(LARGE + 'strategies = ["nccl:nvls+ddp"]\n' + STEP.format(30))

    with pytest.raises(StrategyError, match="nvls"):
        rank_steps(scenario)


def test_calls_that_switches_sum_are_composed(written):
    text = LARGE.replace("dgx-a100x16", "dgx-h100x16") + 'strategies = ["nccl:nvlstree+ddp"]\n'
    (found,) = rank_steps(written(text + FAST.format(187.5)), with_today=False).candidates

    assert found.step.composed
    assert not found.wrong


def test_changes_of_a_composed_step_are_composed(written):
    ranking = rank_steps(written(LARGE + 'strategies = ["nccl+ddp"]\n' + FAST.format(187.5)))
    look = look_at_step(ranking)
    saved = {saving.change.resource: saving.saved for saving in look.savings}

    assert look.links is None
    assert "composed of single calls" in look.missing
    assert sum(piece.seconds for piece in look.path) == pytest.approx(look.seconds)
    assert saved["ib_hdr"] >= 0
    assert saved["compute"] > 0
