"""Twenty questions: every output gives the same advice, and a change is worth it.

`docs/examples/questions` has them, their titles as somebody would ask.
"""

from __future__ import annotations

import json

import pytest

import simreduce as sr
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.report.blocks import Attachments
from simreduce.report.pages import make_page, page_html
from simreduce.report.ranking import ranking_table
from simreduce.report.step_page import step_text
from simreduce.study.ranking import lasting
from simreduce.study.scenario import with_step
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.tune import advice_of, tune
from simreduce.study.tune.steps import rank_steps
from tests.app.cli.command import REPOSITORY
from tests.thorough import some

QUESTIONS = REPOSITORY / "docs" / "examples" / "questions"
ANSWERS = {
    "01-resnet50-dgx1v": "Set --all_reduce_spec=nccl, --gradient_repacking=1",
    "02-tf-cnn-benchmarks": "Set --all_reduce_spec=nccl, --gradient_repacking=1",
    "03-own-pcie-box": "Set --all_reduce_spec=nccl",
    "04-horovod-fusion-off": "Keep Horovod's defaults",
    "05-own-switch": "Run direct",
    "06-step-alexnet-pcie": "Keep PyTorch's defaults (DDP)",
    "07-step-gpt2-h100": "Keep PyTorch's defaults (DDP)",
    "08-step-fsdp-or-ddp": "Keep PyTorch's defaults (DDP)",
    "09-step-does-not-fit": "Use FSDP",
    "10-step-horovod": "Keep Horovod's defaults",
    "11-step-deepspeed": "Use ZeRO-1",
    "12-step-no-framework": "Set --all_reduce_spec=nccl",
    "13-step-slow-network": "Keep PyTorch's defaults (DDP)",
    "14-tune-pytorch": "Set gradient_as_bucket_view=True (DDP)",
    "15-tune-horovod": "Keep Horovod's defaults",
    "16-tune-nccl": "Keep NCCL's own choice",
    "17-tune-deepspeed": (
        "Set reduce_bucket_size=23592960, stage3_prefetch_bucket_size=23592960 (ZeRO-3)"
    ),
    "18-tune-jax": "Keep JAX's defaults",
    "19-tune-busy-gpus": "Keep PyTorch's defaults (DDP)",
    "20-tune-tf-cnn-benchmarks": (
        "Set --variable_update=collective_all_reduce, --all_reduce_spec=collective"
    ),
}
COMMANDS = {"step": "step", "tune": "tune"}
OTHERS = {
    "03-own-pcie-box": (
        "Set --variable_update=distributed_all_reduce, --all_reduce_spec=pscpu:32k:xring"
    ),
    "06-step-alexnet-pcie": "Set gradient_as_bucket_view=True (DDP)",
    "08-step-fsdp-or-ddp": "Set bucket_cap_mb=212 (DDP)",
    "09-step-does-not-fit": "Set reshard_after_forward=False (FSDP)",
    "11-step-deepspeed": (
        "Set reduce_bucket_size=55574528, allgather_bucket_size=55574528 (ZeRO-1)"
    ),
    "12-step-no-framework": (
        "Set --all_reduce_spec=nccl, --agg_small_grads_max_bytes=16384,"
        " --agg_small_grads_max_group=8"
    ),
    "17-tune-deepspeed": ANSWERS["17-tune-deepspeed"],
}
"""What `tune` says where rankings say something else, as it tries more."""


def test_every_question_has_an_answer():
    assert sorted(ANSWERS) == sorted(path.stem for path in QUESTIONS.glob("*.toml"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", some(ANSWERS, 10))
def test_every_output_gives_the_same_advice(simreduce, name):
    """The terminal, the document, the page, the notebook and the export."""
    path, answer = QUESTIONS / f"{name}.toml", ANSWERS[name]
    command = COMMANDS.get(name.split("-")[1], "run")
    text = simreduce(command, path, "--workers", "1").out
    document = json.loads(simreduce(command, path, "--workers", "1", "--json").out)
    advice = document["advice"] if command == "tune" else document["advice"][0]
    page = make_page(document, Attachments(), name)

    assert answer == advice["do"]
    lines = [line.removeprefix("Recommended: ") for line in text.splitlines()]
    assert [line for line in lines if line.startswith(f"{answer}: ")]
    if command != "tune":
        assert text.splitlines()[1].startswith(f"Recommended: {answer}: ")
        scenario = load_scenario(str(path))
        found = sr.step(scenario) if command == "step" else sr.rank(scenario)
        assert f": {answer}, " in found.headline
    assert page.answer.startswith(f"{answer}: ")
    assert answer == page.facts[0].answer
    assert page_html(page)
    if advice["framework"]:
        _check_export(simreduce, path, command, document, advice)


def _check_export(simreduce, path, command, document, advice):
    """The exported files are of the setting that is advised."""
    target = advice["framework"]
    done = simreduce("export", target, path, "--workers", "1")
    assert done.status == 0
    if command == "tune":
        assert all(text.strip() in done.out for text in document["files"].values())
        return
    method, _, algo = advice["strategy"].rpartition(", ")
    more = ["--method", method] if method else []
    assert simreduce("export", target, path, "--algo", algo, *more).out == done.out
    assert FRAMEWORKS[target].title == advice["title"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", some(ANSWERS, 10))
def test_rankings_and_tune_say_one_thing(name):
    """Both keep what runs today, or both change; else a ranking says that `tune` tries more."""
    scenario = load_scenario(str(QUESTIONS / f"{name}.toml"))
    ranking = rank_steps(scenario) if scenario.step else rank(scenario)
    advice = ranking.advice[0]
    table = (step_text if scenario.step else ranking_table)(ranking)
    if not advice.framework:
        assert "--target" not in table
        return
    tuned = advice_of(tune(scenario, advice.framework))

    assert f"`simreduce tune FILE --target {advice.framework}` also tries {advice.more}" in table
    assert "\n  of the settings ranked here" in table
    assert advice.today_words == tuned.today_words
    assert (advice.do == tuned.do) is (name not in OTHERS)
    if name in OTHERS:  # a change that was not ranked here
        assert tuned.do == OTHERS[name]
        assert tuned.changes
        assert lasting(tuned.option) < lasting(advice.option)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, do in ANSWERS.items() if "Keep" not in do])
@pytest.mark.parametrize("scale", some([0.5, 2.0], 1))
def test_a_change_is_worth_it_with_half_and_twice_the_cost_of_a_call(name, scale):
    scenario = load_scenario(str(QUESTIONS / f"{name}.toml"))
    dearer = scenario.but(call_cost=scale * scenario.setup.call_cost)
    if "-tune-" in name:
        found = tune(scenario, scenario.framework)
        took, today = (
            _seconds(row.setting.scenario(dearer)) for row in (found.advised, found.default)
        )
    else:
        advice = (rank_steps(scenario) if scenario.step else rank(scenario)).advice[0]
        if advice.today is None or advice.today.misfit:
            return
        took, today = (_of_row(dearer, each.name) for each in (advice.option, advice.today))
    assert took <= today * (1 - scenario.worth)


def _of_row(scenario, name):
    """Of the row of that name."""
    if scenario.step:
        rows = rank_steps(scenario).candidates
        return next(row.step.seconds for row in rows if name in row.names)
    return next(row.seconds for row in rank(scenario).candidates if name in row.names)


def _seconds(scenario):
    """Of the one strategy of a scenario."""
    if scenario.step:
        return rank_steps(with_step(scenario)).candidates[0].step.seconds
    return rank(scenario).candidates[0].seconds
