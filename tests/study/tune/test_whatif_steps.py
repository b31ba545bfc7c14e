"""Steps and updates looked at closely: loads and savings whose figures are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.engine.setup import Setup
from simreduce.study.scenario import with_step
from simreduce.study.scenario_files import load_replicas, load_scenario
from simreduce.study.tune import steps
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif_steps import (
    StepLook,
    channel_changes,
    look_at_step,
    losses_by_kind,
    run_loads,
    update_effects,
    worker_time,
)
from simreduce.training.stragglers import repeat, sample
from simreduce.workload.loader import load_model

STEP = """
topology = "switch:2,bandwidth=100MB/s,latency=0us"
workload = "trivial"
runtime = "ideal"
strategies = ["{strategy}"]
[step]
batch = 4
rate = "1 TFLOP/s"
{more}
"""
GPU = 'gpu = "H100"\n'
REPLICAS = """
topology = "p3-16xlargex4"
runtime = "ideal"
[replicas]
workers = ["n0.gpu0", "n1.gpu0", "n2.gpu0"]
servers = 1
size = "{size} MB"
compute = "9 ms"
updates = 6
skip = 2
repetitions = 2
"""


@pytest.fixture
def look(tmp_path):
    """The look at the best step of a scenario."""

    def _look(strategy: str, more: str = "") -> StepLook:
        path = tmp_path / "step.toml"
        path.write_text(STEP.format(strategy=strategy, more=more))
        scenario = load_scenario(str(path))
        return look_at_step(rank_steps(scenario))

    return _look


def saved(found: StepLook) -> dict[tuple[str, str], float]:
    """Seconds that each change saves."""
    return {(s.change.resource, s.change.figure): s.saved for s in found.savings}


@pytest.mark.parametrize(
    ("strategy", "more"), [("ring+packs=1", ""), ("ring", 'method = "fsdp"')], ids=["ddp", "fsdp"]
)
def test_a_link_is_busy_for_all_that_a_step_moves(look, strategy, more):
    """Of two GPUs each sends half of the gradients twice: by one all-reduce, or by all-gathers and
    a reduce-scatter. Parameters that are not kept are gathered twice.
    """
    found = look(strategy, more)
    share = {use.name: use.share for use in found.links}
    sent = load_model("trivial").workload.nbytes * (1.5 if more else 1.0)

    assert len(share) == 4
    for use in found.links:
        assert use.nbytes == pytest.approx(use.share * found.seconds * 100e6)
        assert use.nbytes == pytest.approx(sent, rel=1e-3)


def test_savings_of_a_step_that_hides_nothing(look):
    """Compute and one all-reduce follow each other: a tenth faster, each saves an 11th of itself;
    two lanes halve the all-reduce.
    """
    found = look("ring+packs=1")
    computing = sum(p.seconds for p in found.path if not p.bucket)
    moving = found.seconds - computing
    savings = saved(found)

    assert savings["compute", "speed"] == pytest.approx(computing / 11)
    assert savings["cable", "bandwidth"] == pytest.approx(moving / 11)
    assert savings["cable", "lanes"] == pytest.approx(moving / 2)
    assert found.alone.result.seconds == pytest.approx(moving)


def test_gains_outside_of_what_keeps_numerics_by_hand(tmp_path):
    """A step that hides nothing: c of compute and t of copies, without latency."""
    path = tmp_path / "step.toml"
    path.write_text(STEP.format(strategy="ring+packs=1", more=""))
    ranking = rank_steps(load_scenario(str(path)))
    step = ranking.recommended.step
    c, t = step.compute, step.exposed

    assert step.seconds == pytest.approx(c + t)
    assert ranking.outside == pytest.approx(
        {
            "gradients in bf16": (c + t) / (c + t / 2),
            "gradient accumulation over 2 passes": 2 * (c + t) / (2 * c + t),
            "one more cable port beside each": (c + t) / (c + t / 2),
        }
    )


@pytest.mark.parametrize(
    ("machine", "framework", "strategy", "half", "cast", "passes"),
    [
        ("dgx1v", "horovod", "nccl+fusion", "fusion=128M,fp16", "Compression.fp16",
         "backward_passes_per_step=2"),
        ("rtx4090-2", "pytorch", "nccl+ddp", "ddp=25,1,bf16", "bf16_compress_hook",
         "no_sync() for 2 passes"),
        ("rtx4090-2", "pytorch", "nccl+ddp=40,view", "ddp=40,bf16", "bf16_compress_hook",
         "no_sync() for 2 passes"),
    ],
)  # fmt: skip
def test_half_precision_gains_what_the_row_of_its_setting_says(
    tmp_path, machine, framework, strategy, half, cast, passes
):
    """With today's packing, as one then types it, in the words of the framework."""
    path = tmp_path / "step.toml"
    path.write_text(
        f'topology = "{machine}"\nworkload = "vgg16"\nframework = "{framework}"\n'
        f'strategies = ["{strategy}"]\n[step]\nbatch = 8\nrate = "100 TFLOP/s"\n'
    )
    outside = rank_steps(load_scenario(str(path))).outside
    path.write_text(path.read_text().replace(f'["{strategy}"]', f'["{strategy}", "nccl+{half}"]'))
    rows = {row.step.method: row for row in rank_steps(load_scenario(str(path))).candidates}
    [said] = [ratio for words, ratio in outside.items() if cast in words]

    assert said == pytest.approx(rows[strategy].seconds / rows[f"nccl+{half}"].seconds)
    assert passes in outside


def test_a_step_that_hides_nearly_all_says_nothing_of_other_numerics(tmp_path):
    """At most 5 % is exposed."""
    path = tmp_path / "step.toml"
    path.write_text(STEP.format(strategy="ring", more="").replace("1 TFLOP", "1 MFLOP"))
    ranking = rank_steps(load_scenario(str(path)))

    assert ranking.recommended.step.exposed <= 0.05 * ranking.recommended.seconds
    assert ranking.outside == {}


@pytest.mark.parametrize("mode", ["horovod", "parameter_server", "distributed_replicated"])
def test_reductions_that_wait_for_compute_are_not_on_the_path(tmp_path, mode):
    """They take no longer on it than all of them by themselves."""
    path = tmp_path / "step.toml"
    path.write_text(
        'topology = "v100-mesh-4"\nworkload = "googlenet"\nruntime = "tensorflow"\n'
        f'[step]\nbatch = 64\nrate = "5 TFLOP/s"\nvariable_update = "{mode}"\n'
    )
    ranking = rank_steps(load_scenario(str(path)))
    found = ranking.closely
    moved = sum(piece.seconds for piece in found.path if piece.bucket)

    assert moved <= ranking.recommended.alone
    assert found.seconds == ranking.recommended.seconds
    assert sum(piece.seconds for piece in found.path) == pytest.approx(found.seconds)


def test_large_sharded_steps_have_no_loads_and_say_why(look, monkeypatch):
    """But what more lanes save is simulated all the same."""
    monkeypatch.setattr(steps, "MOST_RANKS", 1)
    found = look("ring", 'method = "fsdp"')

    assert found.links is None
    assert "The 2 GPUs were simulated as equal machines" in found.missing
    assert {s.change.sort for s in found.savings} == {"compute", "nic"}
    assert found.alone is None


def test_replicas_by_hand(tmp_path):
    """Equal workers, and so small variables that nothing takes time but computing."""
    path = tmp_path / "replicas.toml"
    path.write_text(REPLICAS.format(size="0.000004"))
    question = load_replicas(str(path)).question
    run = sample(question.job, question.updates, question.skip)
    spent = worker_time(run, question.skip)
    first, *others = update_effects(question, repeat(question.job, 6, 2))

    assert spent["compute"] == pytest.approx(9e-3 * 3 * 4)
    assert spent["compute"] / sum(spent.values()) > 0.99
    assert first.change.resource == "compute"
    assert first.saved.mean == pytest.approx(9e-3 / 11)
    assert all(abs(each.saved.mean) < 1e-5 for each in others)


def test_replicas_that_only_move(tmp_path):
    """The port of the server's machine carries what the other workers read, and is what binds: with
    one more lane it takes half as long.
    """
    path = tmp_path / "replicas.toml"
    path.write_text(REPLICAS.format(size="500"))
    question = load_replicas(str(path)).question
    spread = repeat(question.job, 6, 2)
    links = run_loads(question.job, sample(question.job, 6, 2))
    lanes = next(e for e in update_effects(question, spread) if e.change.sort == "nic"
                 and e.change.figure == "lanes")  # fmt: skip

    assert links[0].name in ("n0.ena0>switch0 tcp_25", "switch0>n0.ena0 tcp_25")
    assert 0.4 < links[0].share <= 0.51
    assert lanes.saved.mean > 0.4 * spread.step(2).mean


NCCL = 'topology = "dgx-h100"\nworkload = "gpt2"\nstrategies = ["{}"]\n{}[step]\nbatch = 16\n{}'


def _ranked(folder, strategy, setting="", more=GPU):
    """GPT-2 on one DGX H100."""
    path = folder / "step.toml"
    path.write_text(NCCL.format(strategy, setting, more), "utf-8")
    return rank_steps(with_step(load_scenario(str(path))), with_today=False)


def test_kernels_that_lose_are_named_by_the_channels_beside_them(tmp_path):
    """What kinds of kernels lose adds up. Two channels hardly load the memory, which 24 do, so
    that they divide otherwise; nobody knows what kernels lose that are not known.
    """
    plain = _ranked(tmp_path, "nccl+ddp")
    lost = losses_by_kind(plain)
    few = losses_by_kind(_ranked(tmp_path, "nccl+ddp", '[nccl]\nNCCL_MAX_CTAS = "2"\n'))

    assert [*lost] == ["products", "attention", "bytes"]
    assert sum(lost.values()) == pytest.approx(plain.recommended.step.interference)
    assert few["bytes"] / sum(few.values()) < 0.6 * lost["bytes"] / sum(lost.values())
    assert not losses_by_kind(_ranked(tmp_path, "nccl+ddp", more='rate = "400 TFLOP/s"\n'))


def test_settings_that_leave_kernels_more_sms_are_simulated(tmp_path):
    """Those that win are said, with the time of a scenario with them: of FSDP, whose all-gathers
    copy engines can move, fewer channels, symmetric memory, and both of these.
    """
    fsdp = GPU + 'method = "fsdp"\n'
    found = {
        (s.change.figure, s.change.amount): s.seconds
        for s in look_at_step(_ranked(tmp_path, "nccl", more=fsdp), closely=False).savings
        if s.change.sort == "setting"
    }
    settings = {
        ("copy engines", ""): "symmetric = true\nNCCL_CTA_POLICY = 2\n",
        ("symmetric memory", ""): "symmetric = true\n",
        ("NCCL_MAX_CTAS", "12"): "NCCL_MAX_CTAS = 12\n",
    }
    assert [*found] == [*settings]
    for key, text in settings.items():
        changed = _ranked(tmp_path, "nccl", f"[nccl]\n{text}", fsdp)
        assert found[key] == pytest.approx(changed.recommended.seconds)
    assert [*found.values()] == sorted(found.values())


def test_copy_engines_gain_nothing_where_all_is_summed(tmp_path):
    """They move no all-reduce, so DDP has symmetric memory's saving alone."""
    assert settings_tried(_ranked(tmp_path, "nccl+ddp")) == ["symmetric memory"]


@pytest.mark.parametrize("machine", ["dgx1v", "mi300x", "dgx-h100"])
def test_settings_that_save_nothing_are_left_out(tmp_path, machine):
    """NCCL takes no kernel on symmetric memory on dgx1v, and AMD's library none anywhere."""
    path = tmp_path / "step.toml"
    path.write_text(
        f'topology = "{machine}"\nworkload = "gpt2"\nstrategies = ["nccl+ddp"]\n'
        "[step]\nbatch = 4\n",
        "utf-8",
    )
    found = rank_steps(load_scenario(str(path)))
    look = look_at_step(found)

    assert found.recommended.step.interference
    assert ("symmetric memory" in settings_tried(found)) == (machine == "dgx-h100")
    assert all(s.saved > 0.0 for s in look.savings if s.change.sort == "setting")


@pytest.mark.parametrize(
    ("machine", "given", "expected"),
    [
        ("dgx-h100", {}, [("NCCL_MAX_CTAS", "12"), ("NCCL_MAX_CTAS", "6"),
                          ("NCCL_NVLS_NCHANNELS", "8"), ("NCCL_NVLS_NCHANNELS", "4"),
                          ("symmetric memory", ""), ("copy engines", "")]),
        ("dgx-h100", {"max_ctas": 8, "nvls_channels": 8, "symmetric": True},
         [("copy engines", "")]),
        ("dgx-h100x2", {"nvls": False}, [("NCCL_MAX_CTAS", "8"), ("NCCL_MAX_CTAS", "4")]),
    ],
)  # fmt: skip
def test_settings_are_tried_where_they_may_change_something(machine, given, expected):
    """Channels of NVLS where it runs, copy engines within a machine, and nothing that is set."""
    setup = Setup(machine, "nccl")
    tried = channel_changes(setup.but(nccl=replace(setup.nccl, **given)))

    assert [(each.figure, each.amount) for each in tried] == expected


def settings_tried(ranking):
    """What settings the look at a step says something of."""
    return [s.change.figure for s in look_at_step(ranking).savings if s.change.sort == "setting"]
