"""DeepSpeed's configurations as questions: batches, dtypes and defaults of DeepSpeed 0.19.6."""

from __future__ import annotations

import json

import pytest

from simreduce import dtypes
from simreduce.study.scenario import OPTIONS
from simreduce.study.scenario_files import look_at_scenario

MODEL, MACHINE = "gpt2", "dgx-h100x2"


def ask(tmp_path, document, *, batch=None, ranks=0, **given):
    """The scenario, and its faults without the file's name."""
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(document), "utf-8")
    given = {"workload": MODEL, "topology": MACHINE, **given}
    scenario, _, problems = look_at_scenario(str(path), batch, OPTIONS, ranks, **given)
    return scenario, [each.removeprefix(f"{path}: ") for each in problems]


def step(tmp_path, document, **given):
    scenario, problems = ask(tmp_path, document, **given)
    assert not problems
    return scenario.step


MICRO = {"train_micro_batch_size_per_gpu": 4}


@pytest.mark.parametrize(
    ("counts", "batch", "passes"),
    [
        (MICRO, 4, 1),
        ({**MICRO, "gradient_accumulation_steps": 3}, 4, 3),
        ({**MICRO, "train_batch_size": 256}, 4, 4),
        ({"train_batch_size": 256}, 16, 1),
        ({"train_batch_size": 256, "gradient_accumulation_steps": 2}, 8, 2),
        ({**MICRO, "train_batch_size": "auto", "gradient_accumulation_steps": "auto"}, 4, 1),
    ],
)
def test_two_of_three_counts_give_the_third(tmp_path, counts, batch, passes):
    """On 16 GPUs."""
    job = step(tmp_path, counts).job

    assert (job.batch, job.accumulate) == (batch, passes)


def test_some_of_the_gpus_share_a_batch(tmp_path):
    job = step(tmp_path, {"train_batch_size": 256, **MICRO}, ranks=8).job

    assert (job.batch, job.accumulate) == (4, 8)


@pytest.mark.parametrize(
    ("stage", "method", "units", "overlap"),
    [
        (0, "ddp", 2_000_000_000, True),
        (1, "zero1", 2_000_000_000, False),
        (2, "zero2", 2_000_000_000, False),
        (3, "zero3", 200_000_000, True),
    ],
)
def test_defaults_are_those_of_deepspeed(tmp_path, stage, method, units, overlap):
    """500,000,000 elements of 4 bytes, of stage 3 a tenth; `overlap_comm` of stage 3 alone."""
    found = step(tmp_path, {**MICRO, "zero_optimization": {"stage": stage}})

    assert found.methods == (method,)
    assert (found.sharding.units, found.sharding.overlap) == (units, overlap)
    assert found.run.precision == "fp32"


@pytest.mark.parametrize(
    ("tables", "gathered", "reduced", "precision"),
    [
        ({"bf16": {"enabled": True}}, "bfloat16", None, "bf16"),
        ({"fp16": {"enabled": True}}, "float16", None, "bf16"),  # kernels of 16 bits
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, "bfloat16", None, "bf16"),
        ({"bf16": {"enabled": True}, "communication_data_type": "fp32"},
         "bfloat16", "float32", "bf16"),
        ({"torch_autocast": {"enabled": True}}, None, None, "amp"),
    ],
)  # fmt: skip
def test_dtypes(tmp_path, tables, gathered, reduced, precision):
    found = step(tmp_path, {**MICRO, **tables, "zero_optimization": {"stage": 2}})
    codes = [None if name is None else dtypes.code(name) for name in (gathered, reduced)]

    assert [found.sharding.param_dtype, found.sharding.reduce_dtype] == codes
    assert (found.run.precision, found.sharding.pure) == (precision, False)


def test_transformers_fills_in_auto_by_the_width(tmp_path):
    zero = {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    found = step(tmp_path, {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero},
                 batch=2, workload="llama-3-8b")  # fmt: skip

    assert found.job.batch == 2
    assert found.sharding.units == 4 * int(0.9 * 4096**2)


def test_every_fault_of_a_configuration_at_once(tmp_path):
    """With what to bring instead."""
    zero = {
        "stage": 4, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"},
        "zero_quantized_weights": True, "zero_hpz_partition_size": 1, "mics_shard_size": -1,
    }  # fmt: skip
    document = {
        "train_micro_batch_size_per_gpu": 0, "train_batch_sizes": 8, "zero_optimization": zero,
        "fp16": {"enabled": True}, "bf16": {"enabled": True}, "optimizer": {"type": "OneBitAdam"},
        "tensor_parallel": {"autotp_size": 2}, "steps_per_print": 10,
    }  # fmt: skip
    _, problems = ask(tmp_path, document)

    assert [each[:46] for each in problems] == [
        "zero_optimization.offload_optimizer: states an",
        "zero_optimization.zero_quantized_weights: ZeRO",
        "tensor_parallel: is not read; write a scenario",
        "train_batch_sizes: unknown key (did you mean '",
        "zero_optimization.stage: must be a whole numbe",
        "train_micro_batch_size_per_gpu: must be a whol",
        "fp16: and bf16 cannot both be enabled",
        "optimizer.type: 'OneBitAdam' is none of adam, ",
    ]
    assert "record a step of the job with the PyTorch profiler" in problems[0]


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"gradient_accumulation_steps": 2}, 'missing, or "auto"; give --batch'),
        ({"train_batch_size": 64, "fp16": {"enabled": "yes"}}, "fp16.enabled: must be true, false"),
        ({"train_batch_size": 100}, "100 samples are no multiple of 16 GPUs x 1 passes"),
    ],
)  # fmt: skip
def test_batches_and_dtypes_that_cannot_be(tmp_path, document, fault):
    _, [problem] = ask(tmp_path, document)

    assert fault in problem


def test_without_a_machine_and_a_model_their_options_are_named(tmp_path):
    _, problems = ask(tmp_path, {"train_batch_size": 8}, topology=None, workload=None)

    assert [each.partition(":")[0] for each in problems] == ["--topology", "--workload"]


def test_no_other_json_is_one(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"stage": 2}', "utf-8")

    assert "this JSON has neither" in look_at_scenario(str(path))[2][0]
