"""Settings in a few words."""

from __future__ import annotations

from simreduce.engine.setup import Setup
from simreduce.export import Choice, export
from simreduce.export.words import changes
from simreduce.planners.strategy import parse_strategy
from simreduce.workload import load_workload


def words(target, text, default):
    setup, workload = Setup("dgx1v"), load_workload("resnet50")
    files, before = (
        export(target, Choice(setup, workload, parse_strategy(each))) for each in (text, default)
    )
    return changes(files, before)


def test_only_what_differs_from_the_default_is_said():
    assert "bucket_cap_mb=100" == words("pytorch", "nccl+ddp=100", "nccl+ddp")
    assert "gradient_as_bucket_view=True" == words("pytorch", "nccl+ddp=25,1,view", "nccl+ddp")
    assert "HOROVOD_FUSION_THRESHOLD=0" == words("horovod", "nccl+fusion=0", "nccl+fusion")
    assert "" == words("horovod", "nccl+fusion", "nccl+fusion")


def test_hooks_flags_and_calls_are_said_as_they_are_typed():
    found = words("pytorch", "nccl+ddp=25,fp16", "nccl+ddp=25")
    assert "wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)" == found
    assert "--xla_gpu_all_reduce_combine_threshold_bytes=100" == words(
        "jax", "nccl+fusion=100", "nccl+fusion=31457280"
    )
    assert "--gradient_repacking=2" == words("tf_cnn_benchmarks", "nccl+packs=2", "nccl")
    assert "NCCL_ALGO=allreduce:ring" == words("nccl", "nccl:ring", "nccl")


def test_modules_of_tensorflow_and_digits_that_say_nothing_are_left_out():
    call = "strategy = tf.distribute.Mirrored(x=tf.a.b.NcclAllReduce())  # note"

    assert "Mirrored with NcclAllReduce" == changes({"a.py": call}, {})
    assert "c=25" == changes({"a.py": '"c": 25.00000095,'}, {})


def test_files_that_settings_name_are_not_read():
    files = {"nccl.env": "NCCL_TUNER_CONFIG_FILE=nccl_tuner.csv\n", "nccl_tuner.csv": "a=1\n"}

    assert "NCCL_TUNER_CONFIG_FILE=nccl_tuner.csv" == changes(files, {})
