"""Settings in a few words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice, changes
from simreduce.planners.strategy import parse_strategy
from simreduce.training.sharded import Sharding
from simreduce.workload.loader import load_workload


def words(target, text, default):
    setup, workload = Setup("dgx1v"), load_workload("resnet50")
    files, before = (
        export(target, Choice(setup, workload, parse_strategy(each))) for each in (text, default)
    )
    return changes(files, before)


def test_only_what_differs_from_the_default_is_said():
    assert "bucket_cap_mb=50" == words("pytorch", "nccl+ddp=50", "nccl+ddp")
    assert "gradient_as_bucket_view=True" == words("pytorch", "nccl+ddp=25,1,view", "nccl+ddp")
    assert "no fusion (HOROVOD_FUSION_THRESHOLD=0)" == words(
        "horovod", "nccl+fusion=0", "nccl+fusion"
    )
    assert "" == words("horovod", "nccl+fusion", "nccl+fusion")


def test_flags_and_calls_are_said_as_they_are_typed():
    assert "--xla_gpu_all_reduce_combine_threshold_bytes=100" == words(
        "jax", "nccl+fusion=100", "nccl+fusion=31457280"
    )
    assert "--gradient_repacking=2" == words("tf_cnn_benchmarks", "nccl+packs=2", "nccl")
    assert "NCCL_ALGO=allreduce:ring" == words("nccl", "nccl:ring", "nccl")


def test_modules_of_tensorflow_and_digits_that_say_nothing_are_left_out():
    call = "strategy = tf.distribute.Mirrored(x=tf.a.b.NcclAllReduce())  # note"

    assert "Mirrored with NcclAllReduce" == changes({"a.py": call}, {})
    call = "tf.a.Workers(options=tf.b.CommunicationOptions(bytes_per_pack=5, implementation=NCCL))"
    assert "Workers with bytes_per_pack=5, implementation=NCCL" == changes({"a.py": call}, {})
    assert "c=25" == changes({"a.py": '"c": 25.00000095,'}, {})


def test_files_that_settings_name_are_not_read():
    files = {"nccl.env": "NCCL_TUNER_CONFIG_FILE=nccl_tuner.csv\n", "nccl_tuner.csv": "a=1\n"}

    typed = "NCCL_TUNER_CONFIG_FILE=nccl_tuner.csv"
    assert f"NCCL's example tuner plugin with a table of sizes ({typed})" == changes(files, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nccl+ddp=25", "the default size, the first bucket too (bucket_cap_mb=25)"),
        ("nccl+ddp=0.000001", "a bucket for each gradient (bucket_cap_mb=9.53674e-07)"),
        ("nccl+packs=1", "one bucket (bucket_cap_mb=1073741824)"),
        ("nccl+ddp=100", "one bucket (bucket_cap_mb=100)"),
    ],
)
def test_buckets_that_need_no_size_are_said_without_one(text, said):
    """ResNet-50 has 97.5 MiB of gradients."""
    assert said == words("pytorch", text, "nccl+ddp")


def test_of_one_tensor_nothing_is_said_of_buckets():
    """It is no model, only a size."""
    choice = Choice(Setup("dgx1v"), load_workload("bytes:1M"), parse_strategy("nccl+ddp=40"))

    assert '"bucket_cap_mb": 40,\n' in export("pytorch", choice)["simreduce_ddp.py"]


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ("", ""),
        ("layers", "a unit for each linear or norm layer"),
        ("model", "the whole model as one unit: fully_shard(model)"),
        (4_000_000, "a unit for each run of layers with 1,000,000 parameters or more"),
    ],
)
def test_units_of_fsdp_are_said_as_what_is_wrapped(units, said):
    plain = Choice(
        Setup("dgx1v"), load_workload("resnet50"), parse_strategy("nccl"), method="fsdp",
        shards=Sharding(), unit=1_000_000,
    )  # fmt: skip
    made = replace(plain, shards=Sharding(units=units))

    assert said == changes(export("pytorch", made), export("pytorch", plain))


def test_groups_of_shards_are_said_without_their_mesh():
    plain = Choice(
        Setup("dgx1v"), load_workload("resnet50"), parse_strategy("nccl"), method="hsdp",
        shards=Sharding(), unit=1_000_000,
    )  # fmt: skip
    made = replace(plain, shards=Sharding(group=2))

    assert "shards within groups of 2 GPUs" == changes(
        export("pytorch", made), export("pytorch", plain)
    )
