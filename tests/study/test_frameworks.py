"""Which frameworks get advice, what they do unless they are told, and what is not simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.engine.setup import Setup
from simreduce.export.frameworks import FRAMEWORKS, TRAINED
from simreduce.planners.strategy import parse_strategy
from simreduce.study import frameworks
from simreduce.study.advice import Option
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.targets import nccl_packings
from simreduce.study.tune.steps import rank_steps
from simreduce.workload.loader import load_workload


def scenario(machine, **more):
    setup = Setup(machine, "by_strategy")
    return Scenario("name", "title", setup, load_workload("resnet50"), None, **more)


@pytest.mark.parametrize(
    ("machine", "first"),
    [("dgx1v", "tensorflow"), ("dgx-a100", "pytorch"), ("dgx-h100", "pytorch")],
)
def test_frameworks_of_the_machines_time_come_first(machine, first):
    found = frameworks.names_for(scenario(machine))

    assert first == found[0]
    assert {"pytorch", "horovod", "tensorflow", "tf_cnn_benchmarks"} == {*found}
    assert ("jax",) == frameworks.names_for(scenario(machine, framework="jax"))


def test_a_scenario_that_runs_on_tensorflow_gets_its_settings_first():
    at = scenario("dgx-h100")

    assert "tensorflow" == frameworks.names_for(at.but(runtime="tensorflow"))[0]


@pytest.mark.parametrize("name", [name for name in TRAINED if FRAMEWORKS[name].packings])
def test_the_default_is_the_one_that_tune_begins_with(name):
    at = scenario("dgx-a100")
    first = nccl_packings(name, at, half=False)[0]

    assert frameworks.default_text(name, at) == f"nccl{first.text}"
    assert FRAMEWORKS[name].title in frameworks.today_words(name)


def test_deepspeed_has_a_setting_for_its_default_whatever_it_packs():
    """Of a model with more elements than a pack too: so `step` names what `tune` names."""
    at = replace(scenario("dgx1v"), workload=load_workload("gpt2-xl"))
    default, whole = map(parse_strategy, (frameworks.default_text("deepspeed", at), "nccl"))

    assert frameworks.files_of("deepspeed", at, default)
    assert frameworks.files_of("deepspeed", at, whole) is None


def test_a_framework_that_is_named_is_the_only_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'topology = "dgx-a100"\nworkload = "alexnet"\nframework = "horovod"\n'
        'strategies = ["nccl", "nccl+ddp", "nccl+fusion", "nccl+fusion=1048576"]\n'
    )
    [advice] = rank(load_scenario(str(path))).advice

    assert ("horovod", "nccl+fusion") == (advice.framework, advice.today.name)
    assert advice.do in ("Keep Horovod's defaults", "Set HOROVOD_FUSION_THRESHOLD=1048576")


def test_advice_names_every_part_that_is_set(tmp_path):
    """What NCCL is told too."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'topology = "dgx-a100x4"\nworkload = "alexnet"\nframework = "pytorch"\n'
        'strategies = ["nccl:ring+ll+channels=1+ddp", "nccl:ring+simple+ddp=40,view"]\n'
    )
    [advice] = rank(load_scenario(str(path))).advice

    said = "bucket_cap_mb=40, gradient_as_bucket_view=True, NCCL_ALGO=allreduce:ring"
    assert f"{said}, NCCL_PROTO=allreduce:simple (DDP)" == advice.fastest_words


def test_copies_that_a_sharded_method_needs_count_against_it():
    """Three times all parameters in and out of the memory of a GPU."""
    at = scenario("dgx-a100")
    copies = 3 * 2 * at.workload.nbytes / at.setup.topology.nodes["gpu0"].memory_bandwidth

    assert copies == frameworks.copies_of(at, "fsdp")
    assert 0.0 == frameworks.copies_of(at, "ddp")


def test_what_many_calls_may_cost_counts_against_a_gain():
    """Twice the stated cost of the option's, or half of that of today's."""
    at = scenario("dgx-a100")
    few, many = Option("few", 1.0), Option("many", 1.0 - 0.01 - 100e-6)
    calls = {"few": 1, "many": 10}

    assert "" == frameworks.doubt_of_calls(at.but(call_cost=9e-6), lambda o: calls[o.name])(
        many, few
    )
    doubt = frameworks.doubt_of_calls(at.but(call_cost=11e-6), lambda o: calls[o.name])
    assert "of calls may cost half or twice of that" in doubt(many, few)
    one = frameworks.calls_of(at, parse_strategy("nccl+bucket=0"))
    assert [at.workload.nbytes] == [call.nbytes for call in one]
    assert len(at.workload.gradients) == len(frameworks.calls_of(at, parse_strategy("nccl")))
    assert frameworks.calls_of(at, parse_strategy("ring")) is None


def test_what_is_within_the_error_of_predictions_is_doubted():
    fast, slow = Option("nccl", 1.0), Option("nccl+ddp", 1.1)

    doubt = "less than the error of these predictions: measure both"
    assert doubt == frameworks.not_told_apart(fast, slow, 0.2)
    assert "" == frameworks.not_told_apart(fast, slow, 0.05)
    assert "" == frameworks.not_told_apart(fast, slow, None)


@pytest.mark.parametrize(
    "algorithm", ["nccl", "oneshot", "twoshot", "multimem", "symmetric", "symmetric:agxll_r"]
)
def test_a_call_costs_what_the_framework_adds(algorithm):
    """One call of NCCL or of a kernel takes that much longer, and two take it twice."""
    at = scenario("dgx-h100")
    many = len(at.workload.gradients)
    for text, calls in ((f"{algorithm}+bucket=0", 1), (algorithm, many)):
        plain, dear = (
            at.setup.but(call_cost=cost).simulate(at.setup.compile(text, at.workload)).seconds
            for cost in (0.0, 100e-6)
        )
        assert calls * 100e-6 == pytest.approx(dear - plain, rel=1e-6)


def test_the_cost_of_a_call_is_in_scenarios_and_not_in_a_bench(tmp_path):
    path = tmp_path / "mine.toml"
    text = 'topology = "dgx-a100"\nworkload = "bytes:1MiB"\nstrategies = ["nccl"]\n'
    path.write_text(text)
    stated = load_scenario(str(path))
    path.write_text(f'{text}call_cost = "0 us"\n')
    free = load_scenario(str(path))
    plan = free.setup.compile("nccl", free.workload)

    assert 25e-6 == stated.setup.call_cost
    assert Setup("dgx-a100").simulate(plan).seconds == free.setup.simulate(plan).seconds
    took = [rank(each).candidates[0].seconds for each in (free, stated)]
    assert 25e-6 == pytest.approx(took[1] - took[0], rel=1e-6)
    assert replace(free, setup=free.setup.but(call_cost=25e-6)).setup == stated.setup


@pytest.mark.parametrize(
    ("option", "today", "caveat"),
    [
        ("nccl+packs=1", "copy_to_gpus", "one pack starts after back-propagation"),
        ("nccl+packs=2", "copy_to_gpus", "one pack starts after back-propagation"),
        ("xring+packs=1", "", "one pack starts after back-propagation"),
        ("nccl+ddp=50", "nccl+ddp", "larger buckets start later in back-propagation"),
        ("nccl+ddp=5", "nccl+ddp", ""),
        ("nccl+ddp", "", ""),
    ],
)
def test_packs_that_wait_for_more_gradients_than_todays_carry_a_caveat(option, today, caveat):
    found = frameworks.starts_late(scenario("dgx1v"), option, today)

    assert bool(caveat) == bool(found)
    assert caveat in found


def test_a_single_call_says_that_its_advice_cannot_overlap(tmp_path):
    path, lines = tmp_path / "mine.toml", 'topology = "dgx1v"\nworkload = "resnet50"\n'
    lines += 'framework = "tf_cnn_benchmarks"\nstrategies = ["copy_to_gpus", "nccl+packs=1"]\n'
    path.write_text(lines)
    [advice] = rank(load_scenario(str(path))).advice

    assert "--gradient_repacking=1" in advice.do
    assert "one pack starts after" in advice.caveat
    path.write_text(f'{lines}[step]\nbatch = 32\nrate = "5 TFLOP/s"\n')
    [advice] = rank_steps(with_step(load_scenario(str(path)))).advice
    assert not advice.caveat


@pytest.mark.parametrize(
    ("name", "method", "bf16", "words"),
    [
        (
            "pytorch",
            "ddp",
            True,
            "bf16 (register_comm_hook(None, default_hooks.bf16_compress_hook))",
        ),
        (
            "pytorch",
            "ddp",
            False,
            "fp16 (register_comm_hook(None, default_hooks.fp16_compress_hook))",
        ),
        ("pytorch", "fsdp", True, "bf16 (MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))"),
        ("horovod", "ddp", True, "fp16 (compression=hvd.Compression.fp16)"),
        ("deepspeed", "zero3", True, 'bf16 ("communication_data_type": "bf16")'),
        ("megatron", "", True, "bf16 (--grad-reduce-in-bf16)"),
        ("", "ddp", False, "fp16"),
    ],
)
def test_half_precision_is_named_as_one_types_it(name, method, bf16, words):
    assert f"gradients in {words}" == frameworks.half_words(name, method, bf16=bf16)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("nccl+fusion=1000", "HOROVOD_FUSION_THRESHOLD=1000"),
        ("nccl+fusion=1000,fp16", "HOROVOD_FUSION_THRESHOLD=1000 with gradients in fp16 (compress"),
        ("nccl+fusion=134217728,fp16", "gradients in fp16 (compression=hvd.Compression.fp16)"),
    ],
)
def test_settings_say_half_precision_that_is_the_programs_to_set(strategy, words):
    """Horovod's threshold without it would gain nothing; and alone it is no name of a strategy."""
    own = scenario("dgx1v")
    files, usual = (
        frameworks.files_of("horovod", own, parse_strategy(each))
        for each in (strategy, "nccl+fusion")
    )
    found = frameworks.words_of("horovod", files, usual, "ddp", parse_strategy(strategy))

    caveat = frameworks.caveat_of(own, strategy, "nccl+fusion=134217728")

    assert found.startswith(words)
    assert ("half precision changes numerics" in caveat) == ("fp16" in strategy)
