"""What to type into tf_cnn_benchmarks and TensorFlow to get a strategy."""

from __future__ import annotations

import pytest

from simreduce.export import StrategySettings, settings
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.topology import load_topology

ONE = layout(load_topology("dgx1v"))
TWO = layout(load_topology("dgx1vx2"))

HIERARCHICAL = "--variable_update=replicated --hierarchical_copy=True --network_topology=dgx1"


def _strategy_of(ops: str) -> str:
    return f"tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.{ops})"


@pytest.mark.parametrize(
    ("strategy", "flags", "call"),
    [
        ("xring#2", "--variable_update=replicated --all_reduce_spec=xring#2", None),
        (
            "psgpu#4+packs=8",
            "--variable_update=replicated --all_reduce_spec=psgpu#4 --gradient_repacking=8",
            None,
        ),
        (
            "pscpu:32k:xring",
            "--variable_update=distributed_all_reduce --all_reduce_spec=pscpu:32k:xring",
            None,
        ),
        ("hierarchical_copy", HIERARCHICAL, _strategy_of("HierarchicalCopyAllReduce(num_packs=0)")),
        (
            "hierarchical_copy+packs=8",
            f"{HIERARCHICAL} --gradient_repacking=8",
            _strategy_of("HierarchicalCopyAllReduce(num_packs=8)"),
        ),
        (
            "copy_to_cpu",
            "--variable_update=replicated --local_parameter_device=cpu",
            _strategy_of('ReductionToOneDevice(reduce_to_device="/device:CPU:0")'),
        ),
        ("copy_to_gpus", "--variable_update=replicated --local_parameter_device=gpu", None),
        (
            "copy_to_gpus+packs=2",
            "--variable_update=replicated --local_parameter_device=gpu --gradient_repacking=2",
            None,
        ),
    ],
)
def test_one_machine(strategy, flags, call):
    """Flags of one process with all GPUs, and the cross-device ops of a mirrored strategy."""
    assert StrategySettings(f"--num_gpus=8 {flags}", call) == settings(
        parse_strategy(strategy), ONE
    )


@pytest.mark.parametrize(
    ("strategy", "call"),
    [
        ("ring", None),
        ("ring+packs=8", None),
        ("reduce_to_one", _strategy_of("ReductionToOneDevice()")),
        ("reduce_to_one+packs=8", None),
        # A spec of several ranges needs a mode that knows no repacking.
        ("pscpu:32k:xring+packs=8", None),
        # Only algorithms of upstream's own grammar can stand in a spec.
        ("hierarchical_copy:32k:xring", None),
        ("ring:32k:hierarchical_copy", None),
    ],
)
def test_what_tf_cnn_benchmarks_cannot_be_told(strategy, call):
    """It has no flag for it; TensorFlow may still have a call."""
    assert StrategySettings(None, call) == settings(parse_strategy(strategy), ONE)


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        (
            "xring#2",
            "--num_gpus=8 --variable_update=distributed_all_reduce --all_reduce_spec=xring#2",
        ),
        (
            "psgpu:1M:pscpu#2",
            (
                "--num_gpus=8 --variable_update=distributed_all_reduce "
                "--all_reduce_spec=psgpu:1M:pscpu#2"
            ),
        ),
        ("xring+packs=8", None),
        ("hierarchical_copy", None),
        ("copy_to_cpu", None),
    ],
)
def test_several_machines(strategy, flags):
    """Only the mode with a spec spans them, with the GPUs of one; a mirrored strategy does not."""
    assert StrategySettings(flags, None) == settings(parse_strategy(strategy), TWO)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_mean_is_nothing_that_tf_cnn_benchmarks_can_be_told(name):
    """It only sums; the call is the same, as the mean is the caller's to ask for."""
    plain, mean = (settings(parse_strategy(text), ONE) for text in (name, f"{name}+mean"))

    assert StrategySettings(None, plain.tensorflow) == mean
