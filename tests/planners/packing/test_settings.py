"""What to type elsewhere to get a packer's packs."""

from __future__ import annotations

import pytest

from simreduce.export import settings
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.topology import load_topology

AGG = "--agg_small_grads_max_bytes={} --agg_small_grads_max_group={}"
ONE, TWO = layout(load_topology("dgx1v")), layout(load_topology("dgx1vx2"))


@pytest.mark.parametrize(
    ("strategy", "shape", "flags"),
    [
        (
            "xring+packs=4",
            ONE,
            "--variable_update=replicated --all_reduce_spec=xring --gradient_repacking=4",
        ),
        (
            "xring+repack=4",
            ONE,
            "--variable_update=replicated --all_reduce_spec=xring --gradient_repacking=4",
        ),
        (
            "xring+repack=4,fp16",
            ONE,
            (
                "--variable_update=replicated --all_reduce_spec=xring --use_fp16 "
                "--gradient_repacking=4"
            ),
        ),
        (
            "xring+repack=0,fp16",
            ONE,
            "--variable_update=replicated --all_reduce_spec=xring --use_fp16",
        ),
        (
            "copy_to_cpu+repack=2",
            ONE,
            "--variable_update=replicated --local_parameter_device=cpu --gradient_repacking=2",
        ),
        (
            "hierarchical_copy+packs=8",
            ONE,
            (
                "--variable_update=replicated --hierarchical_copy=True --network_topology=dgx1 "
                "--gradient_repacking=8"
            ),
        ),
        # Packs of at most 10: upstream's hold two more than its flag says.
        (
            "xring+small=64K,10",
            ONE,
            f"--variable_update=replicated --all_reduce_spec=xring {AGG.format(65536, 8)}",
        ),
        (
            "pscpu:2k:xring+small=4K,3",
            TWO,
            (
                "--variable_update=distributed_all_reduce --all_reduce_spec=pscpu:2k:xring "
                f"{AGG.format(4096, 1)}"
            ),
        ),
        (
            "collective#2+merge=32",
            TWO,
            (
                "--variable_update=collective_all_reduce --all_reduce_spec=collective#2 "
                "--allreduce_merge_scope=32"
            ),
        ),
        ("collective", ONE, "--variable_update=collective_all_reduce --all_reduce_spec=collective"),
    ],
)
def test_flags_of_tf_cnn_benchmarks(strategy, shape, flags):
    assert f"--num_gpus=8 {flags}" == settings(parse_strategy(strategy), shape).tf_cnn_benchmarks


@pytest.mark.parametrize(
    ("strategy", "shape"),
    [
        ("xring+packs=4", TWO),  # gradient_repacking belongs to `replicated`
        ("xring+repack=4,fp16", TWO),
        ("xring+small=64K,2", ONE),  # upstream's smallest packs hold three
        ("hierarchical_copy+small=64K,10", ONE),
        ("collective+small=64K,10", ONE),
        ("collective+packs=2", ONE),
        ("collective+bucket=25M", ONE),
        ("xring+ddp", ONE),
        ("xring+fusion", ONE),
        ("xring+packs=4+mean", ONE),
    ],
)
def test_what_tf_cnn_benchmarks_cannot_run(strategy, shape):
    assert settings(parse_strategy(strategy), shape).tf_cnn_benchmarks is None


COLLECTIVE = (
    "tf.distribute.MultiWorkerMirroredStrategy("
    "communication_options=tf.distribute.experimental.CommunicationOptions(bytes_per_pack={}, "
    "implementation=tf.distribute.experimental.CommunicationImplementation.RING))  # packs act "
    "inside tf.function only"
)
MIRRORED = "tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.{})"


@pytest.mark.parametrize(
    ("strategy", "shape", "call"),
    [
        ("collective+bucket=25M", ONE, COLLECTIVE.format(26214400)),
        ("collective+bucket=0", TWO, COLLECTIVE.format(0)),
        ("collective#2+bucket=0", TWO, None),
        ("xring+bucket=25M", ONE, None),
        ("hierarchical_copy", ONE, MIRRORED.format("HierarchicalCopyAllReduce(num_packs=0)")),
        (
            "hierarchical_copy+packs=8",
            ONE,
            MIRRORED.format("HierarchicalCopyAllReduce(num_packs=8)"),
        ),
        (
            "hierarchical_copy+repack=8",
            ONE,
            MIRRORED.format("HierarchicalCopyAllReduce(num_packs=8)"),
        ),
        ("hierarchical_copy+repack=8,fp16", ONE, None),
        ("hierarchical_copy+ddp", ONE, None),
        ("reduce_to_one", ONE, MIRRORED.format("ReductionToOneDevice()")),
        ("reduce_to_one+small=1K,10", ONE, None),
    ],
)
def test_calls_of_tensorflow(strategy, shape, call):
    assert call == settings(parse_strategy(strategy), shape).tensorflow
