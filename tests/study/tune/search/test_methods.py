"""Sharded methods and modes in the search: the best of all, what fits, and what is handed over."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from random import Random

import pytest

from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError
from simreduce.planners.nccl import Settings
from simreduce.planners.nccl.constants import read_tuner
from simreduce.planners.strategy import parse_strategy
from simreduce.report.ranking import TUNE, tuned_text
from simreduce.study.advice import Sureness
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.search.by_methods import ShardedSearch
from simreduce.study.tune.search.by_plans import MODES, ModeSearch, PlanSearch
from simreduce.study.tune.search.search import Aim, files_of, join
from simreduce.study.tune.search.setting import (
    Setting,
    evaluate,
    least_fit,
    simulating,
)
from simreduce.study.tune.search.targets import methods_of, points_of
from simreduce.study.tune.search.tune import tune
from simreduce.study.tune.steps import predict_step, rank_steps
from simreduce.topology import load_topology
from simreduce.training import Profile, StepJob, StepQuestion
from simreduce.training.sharded import Sharding
from simreduce.training.sharded.collectives import sharded_method
from simreduce.training.sharded.simulation import running_sharded, simulate_sharded_step
from simreduce.training.simulation import least_memory
from simreduce.training.step import Activations
from simreduce.workload import Gradient, Layer, Model
from tests.thorough import slow

_FLOAT = 0


def question(
    seed: int = 0, *, topology: str = "v100-mesh-4", memory: str = "16 GB", **more: object
) -> Scenario:
    """A training step of an embedding and six blocks of random sizes and times."""
    draw = Random(seed)  # noqa: S311 - no secret
    names = ["embed", *(f"h.{i}.{part}" for i in range(3) for part in ("attention", "mlp"))]
    sizes = [int(10 ** draw.uniform(4, 6.3)) for _ in names]
    layers = [Layer(n, (Gradient(f"{n}.w", k, _FLOAT),)) for n, k in zip(names, sizes, strict=True)]
    model, scale = Model("small", tuple(layers)), 10 ** draw.uniform(-4.5, -3)
    times = [scale * draw.random() for _ in names]
    profile = Profile(tuple(times), tuple(2 * t for t in times), "random")
    job = StepJob(model, profile, 1, update=scale * draw.random())
    setup = Setup(load_topology(topology, {"nodes.gpu.memory": memory}), BY_STRATEGY)
    return Scenario("s", "s", setup, model.workload, None, step=StepQuestion(job, **more))


def took(scenario: Scenario, setting: Setting) -> float:
    """Seconds of a whole simulation."""
    assert setting.sharding is not None
    setup = running_sharded(scenario.setup, "test")
    strategy, job = parse_strategy(setting.strategy), scenario.step.job
    how = sharded_method(setting.method, strategy, job, setup.layout, setting.sharding)
    return simulate_sharded_step(job, how, setup).step.seconds


@pytest.mark.parametrize(
    ("seed", "target"),
    [(3, "deepspeed"), *slow([(1, "pytorch"), (1, "fsdp=1"), (2, "any")])],
)
def test_no_point_is_faster_than_the_best(seed, target):
    """Of many that are drawn. Few are simulated as a whole, and no more collectives than half as
    many as there are points of many settings, each of which has dozens.
    """
    scenario = question(
        seed, topology="v100-mesh-4" if target in ("deepspeed", "any") else "v100-mesh-4x2"
    )
    points = points_of(target, methods_of(target, scenario), scenario, ["nccl"], half=False)
    search = ShardedSearch(Aim(scenario, target), points=points)
    with simulating(search.scenario) as do:
        search.run(do)
    draw = Random(seed)  # noqa: S311 - no secret
    best = search.outcome.best

    assert search.outcome.bound >= best * (1 - 1e-9)
    assert len(search.simulated) <= 24 + len({p.method for p in points})
    if target in ("fsdp=1", "any"):
        assert len(search.simulated) <= len(points) / 20
        assert len(search.collectives) <= len(points) / 2
    for setting in draw.sample(points, min(8, len(points))):
        seconds = took(scenario, setting)
        assert seconds >= best * (1 - 1e-9), setting.label
        if setting in search.outcome.seconds:
            assert search.outcome.seconds[setting] == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("topology", ["dgx-a100x2", "dgx-h100x2"])
def test_bounds_of_steps_that_compute_little_hold(topology):
    """Then collectives are all there is: a machine gets and sends what its NICs carry."""
    scenario = question(2, topology=topology, memory="80 GB")
    job = scenario.step.job
    little = tuple(1e-9 for _ in job.profile.forward)
    job = replace(job, profile=Profile(little, little, "little"), update=0.0)
    scenario = replace(scenario, step=replace(scenario.step, job=job))
    points = points_of("any", ["fsdp", "hsdp", "zero2"], scenario, ["nccl"], half=False)
    search = ShardedSearch(Aim(scenario, "any"), points=points)

    for point in Random(topology).sample(search.settings, 4):  # noqa: S311 - no secret
        bound = max(search._floor(point), search._coarse(point))
        assert 0 < bound <= took(scenario, point)


@pytest.mark.slow
def test_methods_compete_with_ddp_and_the_winner_is_handed_over():
    """Where a GPU updates all variables, that takes longer than to gather them."""
    scenario = question(5)
    slow = replace(scenario.step, job=replace(scenario.step.job, update=5e-3))
    scenario = replace(scenario, step=slow)
    found = tune(scenario)
    best = found.best.setting

    assert best.method in ("fsdp", "hsdp")
    alone = took(scenario, best)  # without what NCCL is to choose for each collective
    assert found.best.seconds < alone if best.rules else found.best.seconds == alone
    assert found.default.setting == Setting("nccl+ddp")
    assert {"ddp", "fsdp", "hsdp"} == set(found.by_method)
    assert found.floor <= found.bound <= found.best.seconds < found.by_method["ddp"].seconds
    text = files_of(found)["simreduce_fsdp.py"]
    assert compile(text, "simreduce_fsdp.py", "exec")
    assert f'"reshard_after_forward": {best.sharding.reshard_after_forward},' in text
    assert ("init_device_mesh" in text) is (best.method == "hsdp")


def test_deepspeed_is_told_its_stage():
    scenario = question(5, methods=("zero1", "zero2", "zero3"), sharding=Sharding())
    found = tune(scenario, "deepspeed")
    document = json.loads(files_of(found)["ds_config.json"])

    assert document["zero_optimization"]["stage"] == int(found.advised.setting.method[-1])
    assert {"zero1", "zero2", "zero3"} == set(found.by_method)


def test_the_scenario_says_which_methods():
    """Or all that the target has."""
    scenario = question(5, methods=("fsdp", "zero1"), sharding=Sharding())

    assert methods_of("pytorch", question(5)) == ("ddp", "fsdp", "hsdp")
    assert methods_of("pytorch", scenario) == ("fsdp",)
    assert methods_of("nccl", scenario) == ("fsdp", "zero1")
    with pytest.raises(InputError, match="horovod cannot be told fsdp or zero1; it has ddp"):
        tune(scenario, "horovod")


@pytest.mark.slow
def test_what_does_not_fit_is_not_the_best():
    """DDP needs 16 bytes for each parameter, and NCCL's buffers; shards on four GPUs a part of the
    former. The default is still shown, with the numbers.
    """
    fast, model = question(5), question(5).step.job.model
    least = least_memory("ddp", model, Sharding(), 8)
    assert least.peak == 16 * model.workload.elements
    needed = predict_step(with_step(fast), ("ddp", parse_strategy("nccl"))).fit.needed
    assert needed > least.needed
    found = tune(question(5, memory=f"{needed - 1} B"))
    text = tuned_text(found)

    assert found.default.seconds == evaluate(fast.but(runtime="nccl"), Setting("nccl+ddp")).seconds
    assert found.default.misfit
    assert found.best.setting.method in ("fsdp", "hsdp")
    assert found.best.fit.fits
    assert all(row.misfit for row in found.rows if row.setting.method == "ddp")
    assert "(does not fit)" in text
    assert TUNE.write(found)["default"]["fits"] is False


def test_where_nccls_buffers_leave_no_room_nothing_fits():
    """A simulated setting that does not fit is not tried again for being simpler."""
    least = least_memory("ddp", question(5).step.job.model, Sharding(), 8)
    found = tune(question(5, memory=f"{least.needed - 1} B"))

    assert found.best.misfit
    assert found.unfit > 0
    assert "Nothing that was tried fits a GPU" in tuned_text(found)
    assert "do not fit" in tuned_text(found)


@pytest.mark.slow
def test_what_is_advised_fits_by_its_whole_step(monkeypatch):
    """Of settings that were put together from calls, only the least is known before."""
    asked = question(5, methods=("zero2", "zero3"), sharding=Sharding())
    first = tune(asked, "deepspeed").advised.setting

    looked = []

    def whole(scenario, pair):
        found = predict_step(scenario, pair)
        looked.append(pair)
        return found if looked[1:] else replace(found, fit=found.fit._replace(needed=10**15))

    monkeypatch.setattr("simreduce.study.tune.search.tune.predict_step", whole)
    found = tune(asked, "deepspeed")

    assert found.advised.setting != first
    assert not found.advised.misfit
    assert [row.misfit for row in found.rows if row.setting == first] == [True]


def test_what_cannot_fit_is_said_or_refused():
    """A target that only reduces says it; named methods that all need too much are an error."""
    found = tune(question(5, memory="1 MB"), "nccl")

    assert found.best.misfit
    assert "does not fit" in tuned_text(found)
    with pytest.raises(InputError, match=r"fsdp needs \S+ MB, and a GPU has 1 MB"):
        tune(question(5, memory="1 MB", methods=("fsdp",), sharding=Sharding()))


def test_activations_count():
    scenario = question(5, activations=Activations(17 * 10**9, "given"))

    assert least_fit(scenario.step, scenario.setup, Setting("nccl")).fits is False
    assert tune(scenario, "nccl").best.misfit


@pytest.mark.parametrize(("topology", "count"), [("v100-mesh-4", 2), ("v100-mesh-4x2", 4)])
def test_parameter_servers_are_modes_of_tf_cnn_benchmarks(topology, count):
    """All that it runs are simulated, on one machine no distributed_replicated; the flags say the
    mode if one wins.
    """
    scenario = question(5, topology=topology)
    search = ModeSearch(Aim(scenario))
    with simulating(scenario) as do:
        search.run(do)
    found = join(tune(scenario, "nccl"), search.answer())
    times = {row.setting: row.seconds for row in found.rows}

    modes = [mode for mode in MODES if mode in times]
    assert len(modes) == count
    assert {mode.mode for mode in {*MODES}.difference(modes)} <= {"distributed_replicated"}
    for mode in modes:
        assert times[mode] == evaluate(scenario, mode).seconds < inf
    won = replace(found, rows=tuple(row for row in found.rows if row.setting.mode))
    (text,) = files_of(won, won.best.setting).values()
    assert f"--variable_update={won.best.setting.mode}" in text.split("\n")
    assert won.best.setting.mode in tuned_text(won)


def test_nccl_is_told_by_collective_what_makes_the_step_faster():
    """The file has the rules, and NCCL with them takes what was found."""
    scenario = question(5, methods=("fsdp",), sharding=Sharding())
    quick = replace(scenario.step.job, profile=Profile((0.0,) * 7, (0.0,) * 7, "none"), update=0.0)
    scenario = replace(scenario, step=replace(scenario.step, job=quick))
    found = tune(scenario, "nccl")
    best = found.best.setting
    files = files_of(found, best)
    (table,) = [text for name, text in files.items() if name.endswith(".csv")]
    rules = tuple(read_tuner(table, "export"))
    told = scenario.but(nccl=replace(Settings(), tuner=rules))

    assert {rule.collective for rule in best.rules} == {"all_gather", "reduce_scatter"}
    assert found.best.seconds < found.default.seconds == took(scenario, found.default.setting)
    assert took(told, replace(best, rules=())) == pytest.approx(found.best.seconds, rel=1e-9)


def test_times_of_nccl_are_as_sure_whatever_framework_is_tuned():
    """tf_cnn_benchmarks' best has the interval that a step prints for rows of NCCL."""
    scenario = question(5, topology="dgx1v")
    search = PlanSearch(Aim(scenario, "tf_cnn_benchmarks"))
    search.outcome.seconds |= {Setting("nccl"): 1e-3, Setting("copy_to_gpus"): 2e-3}
    found = search.answer()
    low, high = scenario.setup.interval(max(g.nbytes for g in scenario.workload.gradients), 1.0)

    assert found.sureness == Sureness(low, high)
    assert "within a factor of" in tuned_text(found)
    assert "no published timings" not in tuned_text(found)


def test_where_nothing_fits_tune_says_what_would_as_step_does(tmp_path):
    """Also where only the whole step, with NCCL's buffers, needs more than the least."""
    path = tmp_path / "large.toml"
    for has in (2.6, 2.8):
        path.write_text(
            'topology = "dgx1v"\nworkload = "gpt2"\nframework = "deepspeed"\n'
            f'strategies = ["nccl"]\n[topology_overrides]\n"nodes.gpu.memory" = "{has} GB"\n'
            '[step]\nbatch = 1\ntime = "20 ms"\nmethod = "zero1"\nkernels = "megatron"\n'
        )
        scenario = with_step(load_scenario(str(path)))
        ranking = rank_steps(scenario)
        with pytest.raises(InputError) as caught:
            tune(scenario, "deepspeed")

        [needs, would] = caught.value.problems
        assert needs.startswith("large: zero1 needs ")
        assert would == f"large: it would fit with {ranking.fits_with}"
        assert ranking.fits_with.startswith('recompute = "full"')
