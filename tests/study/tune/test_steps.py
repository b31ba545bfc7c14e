"""Strategies ranked by the step around them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

import simreduce as sr
from simreduce import units
from simreduce.engine import Disturbance, Fault
from simreduce.errors import Deadlock, InputError, ScenarioError, StrategyError
from simreduce.plan import verify
from simreduce.report.step_page import step_text
from simreduce.report.steps import step_document
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.search.tune import advice_of, tune
from simreduce.study.tune.steps import MethodRanking, rank_steps
from tests.thorough import THOROUGH, slow

STEP = '[step]\nbatch = 4\ntime = "30 ms"\n'
BASE = (
    'topology = "switch:4,bandwidth=8GB/s,latency=5us"\nworkload = "alexnet"\nruntime = "ideal"\n'
)


@pytest.fixture
def written(tmp_path):
    """A scenario that is written here."""

    def _written(text: str) -> Scenario:
        path = tmp_path / "mine.toml"
        path.write_text(text, "utf-8")
        return load_scenario(str(path))

    return _written


@pytest.fixture
def ranked(written):
    """The ranking of a scenario that is written here."""

    def _ranked(text: str, **more: object) -> MethodRanking:
        return rank_steps(with_step(written(text)), **more)

    return _ranked


def test_the_fastest_reduction_is_not_that_of_the_fastest_step(ranked):
    """AlexNet: one pack saves latency and moves last; gradients by themselves are hidden but for
    the first layer's.
    """
    ranking = ranked(BASE + 'strategies = ["ring", "ring+packs=1", "ring+ddp"]\n' + STEP)
    by_step = [c.step.method for c in ranking.candidates]
    alone = {c.step.method: c.alone for c in ranking.candidates}

    assert by_step.index("ring+packs=1") == 2
    assert alone["ring+packs=1"] == min(alone.values())
    assert ranking.recommended is ranking.candidates[0]
    assert sorted(c.step.seconds for c in ranking.candidates) == [
        c.step.seconds for c in ranking.candidates
    ]


def test_what_a_candidate_says_is_what_its_plan_takes(ranked):
    """Alone as `simulate` has it, and proved."""
    ranking = ranked(BASE + 'strategies = ["ring+packs=1"]\n' + STEP)
    (found,) = ranking.candidates
    scenario = ranking.scenario
    plan = sr.compile("ring+packs=1", scenario.workload, scenario.setup.layout)

    assert (sr.simulate(plan, scenario.setup.topology, "ideal").seconds, len(verify(plan))) == (
        found.alone,
        found.wrong,
    )
    assert found.step.seconds == pytest.approx(found.step.compute + found.alone)


def test_processes_do_not_change_the_order(ranked):
    text = BASE + 'strategies = ["ring", "xring", "ring+ddp", "nccl"]\n' + STEP
    calls: list[tuple[int, int]] = []

    def count(coming, total):
        calls.append((0, total))
        for done, each in enumerate(coming, 1):
            calls.append((done, total))
            yield each

    one, two = (
        ranked(text),
        ranked(text, workers=2, watch=count),
    )

    assert [(c.step, c.alone) for c in one.candidates] == [
        (c.step, c.alone) for c in two.candidates
    ]
    assert [(i, 4) for i in range(5)] == calls


def test_all_strategies_are_tried_and_those_refused_are_named(ranked):
    """As `run` does."""
    ranking = ranked('topology = "ring:4"\nworkload = "bytes:64K"\nruntime = "ideal"\n' + STEP)

    assert sum(1 + len(c.also) for c in ranking.candidates) > 50
    assert {"hierarchical_copy", "copy_to_gpus"} <= {name for name, _ in ranking.refused}


def test_methods_with_one_plan_and_one_step_share_a_row(ranked):
    """Under the shortest name, whatever their order."""
    ranking = ranked(
        'topology = "ring:4"\nworkload = "bytes:64K"\nruntime = "ideal"\n'
        'strategies = ["best_ring", "trees", "ring"]\n' + STEP
    )

    assert [("ring", ("best_ring",)), ("trees", ())] == sorted(
        (c.step.method, c.also) for c in ranking.candidates
    )
    assert "  ring = best_ring" in step_text(ranking)
    assert ["best_ring"] in [each["also"] for each in step_document(ranking)["candidates"]]


def test_a_mode_is_one_candidate(ranked):
    """Named by what tf_cnn_benchmarks calls it."""
    ranking = ranked(
        'topology = "dgx1p"\nworkload = "alexnet"\n'
        + STEP
        + 'variable_update = "parameter_server"\n'
    )

    assert ["parameter_server"] == [c.step.method for c in ranking.candidates]
    assert ranking.candidates[0].step.reads


def test_fewer_gpus_than_the_machine_has(ranked):
    """The layout says which."""
    ranking = ranked(BASE + 'strategies = ["ring"]\n' + STEP)
    pair = rank_steps(ranking.scenario.but(part=ranking.scenario.setup.layout.subset(2)))

    assert [4, 2] == [ranking.candidates[0].step.devices, pair.candidates[0].step.devices]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (BASE, ScenarioError, r"it has no \[step\]"),
        (
            BASE + 'strategies = ["hierarchical_copy", "copy_to_gpus"]\n' + STEP,
            StrategyError,
            "hierarchical_copy",
        ),
        (
            BASE + STEP + 'variable_update = "distributed_all_reduce"\n',
            StrategyError,
            "needs an all_reduce_spec",
        ),
    ],
)
def test_what_is_not_accepted(ranked, text, error, says):
    """On a ring of GPUs, where not all have a way to each other."""
    with pytest.raises(error, match=says):
        ranked(text.replace("switch:4", "ring:4"))


def test_faults_that_cut_off_for_ever(written):
    """All of them: a Deadlock."""
    cut = Disturbance(faults=(Fault(0.0, "gpu0", 0.0),))
    with pytest.raises(Deadlock):
        rank_steps(written(BASE + 'strategies = ["ring"]\n' + STEP).but(disturbance=cut))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_stopped_keeps_what_it_has(ranked, workers):
    """Two of three strategies; with none there is nothing to tell."""

    def stop(coming, _total):
        yield from islice(coming, 2)
        raise KeyboardInterrupt

    text = BASE + 'strategies = ["ring", "ring+packs=1", "ring+ddp"]\n' + STEP
    ranking = ranked(text, workers=workers, watch=stop)

    assert 1 == ranking.untried
    kept = {c.step.method for c in ranking.candidates}
    assert 2 == len(kept)
    assert workers == 2 or {"ring", "ring+packs=1"} == kept  # two processes may end in any order
    assert 0 == ranked(text).untried


def test_reads_from_a_server_count_as_what_moves(ranked):
    """Four GPUs that share one link to their host are less efficient than one that has it alone."""
    text = 'topology = "pcie-single-root-4"\nworkload = "alexnet"\nruntime = "ideal"\n' + STEP
    served = text + 'variable_update = "parameter_server"\nlocal_parameter_device = "cpu"\n'
    ranking = ranked(served)
    alone = rank_steps(ranking.scenario.but(part=ranking.scenario.setup.layout.subset(1)))
    (four,), (one,) = ranking.candidates, alone.candidates

    for each in (one, four):
        step = each.step
        assert each.efficiency == pytest.approx((step.compute + step.update) / step.seconds)
    assert four.efficiency < 0.9 * one.efficiency


def test_a_sharded_update_counts_as_the_share_that_a_gpu_has(ranked):
    """Of 4 ms each of four GPUs takes 1, whether it updates alone or beside the others."""
    text = BASE + 'strategies = ["ring"]\n' + STEP + 'method = ["ddp", "fsdp"]\nupdate = "4 ms"\n'
    by_method = {c.step.method.split(",")[0]: c for c in ranked(text).candidates}

    for method, update in (("ddp", 4e-3), ("fsdp", 1e-3)):
        found = by_method[method]
        assert update == pytest.approx(found.step.update)
        busy = found.step.launch + found.step.compute + update
        assert found.unmoved == pytest.approx(found.step.samples / busy)


@pytest.mark.parametrize(
    ("slowed", "update"),
    [
        ({}, "50 ms"),
        ({"gpu1": 3.0}, "0 ms"),
        *([({}, "0 ms"), ({"gpu1": 3.0}, "50 ms")] if THOROUGH else []),
    ],
)
@pytest.mark.parametrize(
    "method",
    [
        'method = ["ddp", "fsdp", "zero1", "zero2", "zero3"]\n',
        'variable_update = "independent"\n',
        *(
            f'variable_update = "{mode}"\nlocal_parameter_device = "{place}"\n'
            for mode, place in (
                ("parameter_server", "cpu"),
                ("distributed_replicated", "gpu"),
            )
        ),
        *slow(
            f'variable_update = "{mode}"\nlocal_parameter_device = "{place}"\n'
            for mode, place in (
                ("parameter_server", "gpu"),
                ("distributed_replicated", "cpu"),
                ("replicated", "cpu"),
                ("replicated", "gpu"),
            )
        ),
    ],
)
def test_no_method_does_more_than_if_nothing_moved(ranked, method, slowed, update):
    """Also where the machines' NVLink brings GPUs what a GPU alone reads from its host."""
    strategies = "" if "variable" in method else 'strategies = ["nccl"]\n'
    runtime = "nccl" if strategies else "tensorflow"
    text = f'topology = "dgx1v"\nworkload = "alexnet"\nruntime = "{runtime}"\n{strategies}'
    ranking = ranked(f'{text}{STEP}{method}update = "{update}"\n')
    found = rank_steps(ranking.scenario.but(disturbance=Disturbance(slow=slowed)))

    for each in found.candidates:
        assert 0.0 < each.efficiency <= 1.0 + 1e-12, each.names


MEMORY = """
topology = "{topology}"
workload = "alexnet"
strategies = ["ring"]
runtime = "ideal"
{overrides}
[step]
method = ["ddp", "fsdp"]
batch = 4
time = "300 ms"
activations = "{activations}"
"""


@pytest.mark.parametrize(
    ("size", "activations", "fits", "best"),
    [
        ("2.1 GB", "1 MB", (True, True), "ddp"),
        ("1.8 GB", "1 MB", (True, False), "fsdp"),
        ("1 GB", "1 MB", (False, False), "fsdp"),
        ("2 GB", "1900 MB", (False, False), "fsdp"),
    ],
)
def test_what_does_not_fit_is_not_recommended(ranked, size, activations, fits, best):
    """AlexNet has 247 MB of parameters: DDP holds 989 MB with Adam, whose step is the fastest;
    FSDP on 4 GPUs a quarter of that, and what it gathers. PyTorch needs more.
    """
    override = f'[topology_overrides]\n"nodes.gpu.memory" = "{size}"'
    ranking = ranked(
        MEMORY.format(topology="v100-mesh-4", overrides=override, activations=activations)
    )
    rows = {c.step.method.partition(",")[0]: c for c in ranking.candidates}
    text = step_text(ranking)
    document = step_document(ranking)

    assert fits == (rows["fsdp"].fit.fits, rows["ddp"].fit.fits)
    assert ranking.recommended is rows[best]
    behind = [c.misfit for c in ranking.candidates]
    assert behind == sorted(behind)
    memory = rows["ddp"].step.memory
    assert memory.peak == 4 * 247_369_380 + memory.activations.nbytes
    assert rows["ddp"].fit.needed == memory.needed > memory.peak
    assert f"{memory.needed / 1e9:.2f}{' *' * (not fits[1])}" in text
    assert ("Does not fit" in text) is (False in fits)
    assert ("ddp, ring needs" in text) is (not fits[1])
    assert {c["fits"] for c in document["candidates"]} == set(fits)
    assert document["gpu_memory_bytes"] == rows["ddp"].fit.available


@pytest.mark.parametrize("line", ['activations = "2 GB"', 'kernels = "megatron"', ""])
def test_buckets_and_views_count_however_activations_are_known(ranked, line):
    """A GPU holds all gradients once in DDP's buckets, as views or beside them."""
    ranking = ranked(
        'topology = "v100-mesh-4"\nworkload = "gpt2"\nruntime = "ideal"\n'
        'strategies = ["ring", "ring+ddp", "ring+ddp=25,1,view"]\n'
        f'[step]\nbatch = 1\ntime = "50 ms"\nmethod = ["ddp", "fsdp"]\n{line}\n'
    )
    plain, buckets, views = (
        next(row.step.memory for row in ranking.candidates if f"ddp, {name}" in row.names)
        for name in ("ring", "ring+ddp", "ring+ddp=25,1,view")
    )
    whole = sum(4 * each.elements for each in ranking.scenario.workload.gradients)

    assert (plain.buckets, buckets.buckets, views.buckets) == (0, whole, 0)
    assert buckets.peak == plain.peak + whole
    assert views.gradients == whole
    assert plain.peak <= views.peak <= buckets.peak


def test_whether_it_fits_is_not_known_of_machines_of_no_product(ranked):
    """Nothing is refused for it."""
    ranking = ranked(MEMORY.format(topology="switch:4", overrides="", activations="4 GB"))

    assert [c.fit.fits for c in ranking.candidates] == [None, None]
    assert "whether that fits is not known" in step_text(ranking)


def test_the_bottleneck_is_the_link_that_is_slow(ranked):
    """Of reductions and of sharded methods alike: the network, at a hundredth of its rate."""
    text = (
        'topology = "dgx-h100x2"\nworkload = "alexnet"\nstrategies = ["nccl"]\n'
        "[link_factors]\nib_ndr = 0.01\n"
        '[step]\nbatch = 4\ntime = "30 ms"\nmethod = ["ddp", "fsdp"]\n'
    )

    assert {"ib_ndr"} == {c.bottleneck.split()[-1] for c in ranked(text).candidates}


def test_half_precision_is_advised_only_where_it_is_named(ranked):
    """It moves half of the bytes and may train something else."""
    machine = 'topology = "v100-mesh-4x2,nic=tcp_10"\nworkload = "alexnet"\n'
    named = ranked(
        f'{machine}framework = "pytorch"\nstrategies = ["nccl+ddp", "nccl+ddp=25,fp16"]\n{STEP}'
    )
    asked_for_all = replace(named, scenario=replace(named.scenario, strategies=None))

    assert "nccl+ddp=25,fp16" == named.advice[0].option.name
    hook = "with gradients in fp16 (register_comm_hook(None, default_hooks.fp16_compress_hook))"
    text = step_text(named, details=False)
    assert hook in text
    assert text.count("comm_hook") == 1
    assert ", but half precision changes numerics." in text
    assert ("nccl+ddp", False) == (
        asked_for_all.advice[0].option.name, asked_for_all.advice[0].changes,
    )  # fmt: skip


def test_a_batch_is_cut_in_equal_parts(tmp_path):
    """Of an odd one no sample is lost."""
    path = tmp_path / "odd.toml"
    path.write_text(
        'topology = "dgx1v"\nworkload = "gpt2"\nstrategies = ["nccl+fusion"]\n'
        'framework = "horovod"\n'
        '[step]\nbatch = 15\nrate = "40 TFLOP/s"\nactivations = "30 GB"\n'
    )
    found = rank_steps(with_step(load_scenario(str(path))))

    assert found.fits_with.startswith("batch = 5 and accumulate = 3 (")


def test_a_cycle_is_none_of_xlas(tmp_path):
    path = tmp_path / "jax.toml"
    path.write_text(
        'topology = "dgx1v"\nworkload = "gpt2"\nframework = "jax"\n'
        '[step]\nbatch = 1\nrate = "40 TFLOP/s"\ncycle = "5 ms"\n'
    )
    with pytest.raises(InputError, match=r"step\.cycle: is Horovod's; jax settles"):
        load_scenario(str(path))


@pytest.mark.parametrize(("framework", "cycle"), [("jax", False), ("horovod", True)])
def test_xla_settles_buffers_before_a_step_and_horovod_looks_each_millisecond(
    ranked, framework, cycle
):
    """A buffer for everything, once all gradients are ready, or at the next tick."""
    text = f'topology = "dgx-a100"\nworkload = "resnet50"\nframework = "{framework}"\n'
    found = ranked(f'{text}strategies = ["nccl+packs=1", "nccl+fusion=256M"]\n[step]\nbatch = 64\n')
    one, fused = ({n: c.seconds for c in found.candidates for n in c.names}[n] for n in (
        "nccl+packs=1", "nccl+fusion=256M",
    ))  # fmt: skip

    assert (fused == pytest.approx(one, rel=1e-9)) is not cycle
    assert (fused * 1e3 == pytest.approx(round(fused * 1e3), rel=1e-6)) is cycle


@pytest.mark.parametrize(
    ("more", "keeps"),
    [
        ("", True),
        ('units = "2GB"', True),
        ('units = "200MB"', False),
        ("forward_prefetch=1", False),
    ],
)
def test_what_deepspeed_does_by_default_takes_as_long_in_step_and_in_tune(tmp_path, more, keeps):
    """Its own size of units, unless the scenario has another, which is not called a default."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'topology = "dgx-a100"\nworkload = "gpt2-medium"\nframework = "deepspeed"\n'
        'strategies = ["nccl"]\n[step]\nmethod = "zero3"\nbatch = 1\nrate = "100 TFLOP/s"\n'
        f"[step.sharding]\n{more}\n"
    )
    scenario = with_step(load_scenario(str(path)))
    [advice] = rank_steps(scenario).advice
    found = tune(scenario, "deepspeed")

    assert keeps == (advice.today is not None)
    if keeps:
        assert found.default.seconds == pytest.approx(advice.today.seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "strategy", "says"),
    [
        ("pytorch", "nccl", 'method = "fsdp"'),
        ("pytorch", "nccl+ddp", 'method = "fsdp" and strategies = ["nccl"]'),
    ],
)
def test_a_step_that_does_not_fit_says_what_would_and_keeps_the_promise(
    tmp_path, name, strategy, says
):
    """In what its framework has."""
    path = tmp_path / "large.toml"
    text = f'topology = "dgx1v"\nworkload = "gpt2-xl"\nframework = "{name}"\n'
    text += f'strategies = ["{strategy}"]\n[step]\nbatch = 1\nrate = "60 TFLOP/s"\n'
    text += 'kernels = "megatron"\n'
    path.write_text(text)
    found = rank_steps(with_step(load_scenario(str(path))))

    assert found.recommended.misfit
    assert found.fits_with.partition(" (")[0] == says
    assert f"it would fit with {says}" in step_text(found, details=False)
    path.write_text(f'{text.replace("nccl+ddp", "nccl")}method = "fsdp"\n')
    again = rank_steps(with_step(load_scenario(str(path)))).recommended.fit
    assert again.fits
    assert f"({units.format_size(again.needed)} a GPU)" in found.fits_with


@pytest.mark.parametrize(
    ("batch", "methods", "says"),
    [
        (1, '"ddp"', 'method = "zero3"'),
        (4, '"ddp", "zero1"', 'recompute = "full"'),
        (4, '"ddp", "zero1", "zero3"', 'recompute = "full"'),
        (4, '"ddp"', 'recompute = "full" and method = "zero3"'),
    ],
)
def test_what_would_fit_is_of_the_methods_of_the_scenario_or_else_of_its_framework(
    tmp_path, batch, methods, says
):
    """Of methods that are as fast, it is the one that holds least."""
    path = tmp_path / "large.toml"
    path.write_text(
        'topology = "dgx1v"\nworkload = "gpt2-xl"\nframework = "deepspeed"\nworth = "50 %"\n'
        'strategies = ["nccl"]\n[topology_overrides]\n"nodes.gpu.memory" = "21 GB"\n'
        f'[step]\nbatch = {batch}\nrate = "60 TFLOP/s"\n'
        f'kernels = "megatron"\nmethod = [{methods}]\n'
    )
    found = rank_steps(with_step(load_scenario(str(path))))

    assert found.fits_with.partition(" (")[0] == says
    if "zero1" in methods:  # as `tune` says, whose default is no shards where they are one of many
        assert found.advice[0].today_words == "DeepSpeed's defaults (DDP)"


@pytest.mark.slow
def test_the_default_is_the_first_method_that_fits_in_both_commands(tmp_path):
    """Of those that the scenario names; no framework shards unless it is told to."""
    path = tmp_path / "large.toml"
    path.write_text(
        'topology = "dgx1v"\nworkload = "gpt2-xl"\nframework = "deepspeed"\n'
        'strategies = ["nccl"]\n[step]\nbatch = 1\nrate = "60 TFLOP/s"\n'
        'kernels = "megatron"\nrecompute = "full"\nmethod = ["zero1", "zero2", "zero3"]\n'
    )
    scenario = with_step(load_scenario(str(path)))
    [advice], tuned = rank_steps(scenario).advice, advice_of(tune(scenario, "deepspeed"))

    assert advice.today_words == tuned.today_words
    assert not advice.today.misfit
    assert advice.today_words.startswith("DeepSpeed's defaults with ZeRO-")


def test_more_recomputation_makes_room(tmp_path):
    """As a step with it says."""
    path = tmp_path / "long.toml"
    text = 'topology = "dgx-a100"\nworkload = "gpt2-medium"\nframework = "deepspeed"\n'
    text += 'strategies = ["nccl"]\n[step]\nmethod = "zero3"\nbatch = 64\nrate = "100 TFLOP/s"\n'
    text += 'kernels = "megatron"\n'
    path.write_text(text)
    found = rank_steps(with_step(load_scenario(str(path))))
    path.write_text(f'{text}recompute = "{found.fits_with.split(chr(34))[1]}"\n')
    again = rank_steps(with_step(load_scenario(str(path)))).recommended.fit

    assert found.fits_with.startswith('recompute = "')
    assert again.fits
    assert f"({units.format_size(again.needed)} a GPU)" in found.fits_with
