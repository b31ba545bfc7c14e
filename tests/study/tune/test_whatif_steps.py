"""Steps and updates looked at closely: loads and savings whose figures are worked out by hand."""

from __future__ import annotations

import pytest

from simreduce.study.scenario_files import load_replicas, load_scenario
from simreduce.study.tune import steps
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif_steps import (
    StepLook,
    look_at_step,
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
