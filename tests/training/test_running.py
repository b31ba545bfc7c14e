"""What models take on one GPU as PyTorch runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.files.published import timed_compute
from simreduce.topology import Node, load_topology
from simreduce.training.eager import (
    AMP,
    BF16,
    COMPILED,
    EAGER,
    FP32,
    GELU_NEW,
    MEGATRON,
    OF_INPUTS,
    OF_RESULTS,
    OF_WEIGHTS,
    PRECISIONS,
    TF32,
    Convolution,
    Launched,
)
from simreduce.training.gpus import GPUS, gpu_for
from simreduce.training.memory import FULL, SELECTIVE, UNFUSED, ModelRun
from simreduce.training.running import Transformer, run_profile
from simreduce.training.sharded import Sharding
from simreduce.workload.loader import load_model, shipped
from tests.training.small import read_step

H200 = GPUS["H200"]
SHIPPED = ["gpt2", "bert-base", "vit-b-16", "resnet50", "vgg16", "llama-3-8b", "nemotron-4-15b"]
WITHOUT = ("deepseek", "grok", "mixtral", "qwen3", "t5")
"""How names of models begin whose kernels by PyTorch are not known."""


def seconds(
    name: str, batch: int = 16, kernels: str = EAGER, precision: str = AMP, **more
) -> float:
    run = ModelRun(kernels, precision, **more)
    return run_profile(load_model(name), H200, batch, run).seconds


@pytest.mark.parametrize(
    ("precision", "forward", "backward", "bytes_each"),
    [(BF16, 8, 11, (36, 56)), (TF32, 8, 11, (72, 112)), (AMP, 9, 14, (64, 106))],
)
def test_a_nonlinearity_is_the_kernels_that_pytorch_dispatches(
    precision, forward, backward, bytes_each
):
    """NewGELUActivation, without the casts around the products: so many kernels, and so many bytes
    of each element, where no kernel converts.
    """
    elements = 2.0**30
    found = Launched(replace(H200, kernel=0.0), precision).chain(elements, GELU_NEW)
    counted = Launched(replace(H200, kernel=1.0), precision).chain(0.0, GELU_NEW)
    rate = H200.memory_bandwidth * H200.memory * 1.075

    assert (forward, backward) == (counted.forward.seconds, counted.backward.seconds)
    for cost, nbytes in zip(found, bytes_each, strict=True):
        least = elements * nbytes / rate
        assert cost.seconds == pytest.approx(least, rel=1e-9 if precision != AMP else 0.3)
        assert cost.seconds >= least * (1 - 1e-9)


def test_layers_of_llama_as_compiled():
    """Nothing was fitted to them. Their inputs need a gradient, as within a model."""
    rows = [r for r in timed_compute() if (r.gpu, r.kind) == ("H200", "layers_compiled")]

    for row in rows:
        count, tokens, width, heads, groups, inner = row.shape
        block = Transformer(
            width, heads, groups, width // heads, inner, bias=False, gated=True, cache=True,
            rotary=True,
        )  # fmt: skip
        parts = block.blocks(Launched(H200, BF16, True), 1, tokens, count, fused=True, policy="")
        found = sum(way.seconds for part in parts for way in part)
        assert found == pytest.approx(row.seconds, rel=0.07)
    assert len(rows) == 3


def test_rows_that_no_load_fits_slow_a_product_down():
    """Logits of 50,257 words of 16 bits; of 50,258 half as much, of 50,304 not at all."""
    k = Launched(H200, BF16)
    odd, even, padded = (
        k.linear(16384, 768, words, bias=False).backward.seconds for words in (50257, 50258, 50304)
    )

    assert odd > 1.8 * even > 3.2 * padded


@pytest.mark.parametrize("name", SHIPPED)
def test_precisions_and_ways_are_in_order(name):
    """Compiled before eager, 16 bits before autocast before TF32 before float32; with samples
    enough that no host is late.
    """
    bf16, amp, tf32, fp32 = (seconds(name, 128, precision=p) for p in (BF16, AMP, TF32, FP32))

    assert bf16 <= amp < tf32 < fp32
    assert seconds(name, 128, COMPILED) < amp


@pytest.mark.parametrize("name", SHIPPED)
def test_a_profile_has_each_layer(name):
    """And a larger batch takes longer in each."""
    model = load_model(name)
    small, large = (run_profile(model, H200, batch, ModelRun()) for batch in (64, 256))

    assert len(small.forward) == len(small.backward) == len(model.layers)
    assert small.seconds < large.seconds < 4.1 * small.seconds
    assert small.update == large.update > 0
    assert small.source == "kernels of H200, eager, amp"


def test_the_host_holds_small_batches_up():
    """The GPU then waits for it; a faster host helps, a faster GPU does not."""
    model = load_model("gpt2,sequence=128")
    one, two = (sum(run_profile(model, H200, batch, ModelRun()).forward) for batch in (1, 2))
    ready = sum(run_profile(model, replace(H200, host=H200.host / 2), 1, ModelRun()).forward)
    faster = sum(run_profile(model, replace(H200, flops=2 * H200.flops), 1, ModelRun()).forward)

    assert one == pytest.approx(two, rel=0.02)
    assert ready == pytest.approx(one / 2, rel=0.1)
    assert faster == pytest.approx(one, rel=0.02)


def test_what_is_computed_again_takes_its_forward_pass():
    """All blocks, or attention by itself."""
    model = load_model("gpt2")
    none, full, some = (
        run_profile(model, H200, 16, ModelRun(recompute=each)) for each in ("none", FULL, SELECTIVE)
    )
    blocks = sum(none.forward[1:-1])

    assert full.forward == some.forward == none.forward
    assert sum(full.backward) - sum(none.backward) == pytest.approx(blocks, rel=0.02)
    assert 0.01 * blocks < sum(some.backward) - sum(none.backward) < 0.2 * blocks


def test_unfused_attention_takes_longer():
    """It moves scores."""
    assert seconds("gpt2", attention=UNFUSED) > 1.3 * seconds("gpt2")


def test_the_loss_has_a_third_of_a_small_models_backward():
    """Gradients of the blocks wait for it, which decides buckets."""
    found = run_profile(load_model("gpt2"), H200, 16, ModelRun())

    assert found.backward[-1] == pytest.approx(sum(found.backward) * 0.36, rel=0.05)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t5-base", "t5-base is no model whose kernels are known: a decoder such as gpt2"),
        ("bytes:1M", "is no model whose kernels are known"),
        ("mixtral-8x7b", 'as Megatron-LM runs them; give kernels = "megatron"'),
        ("deepseek-v3", "of latent attention are known as Megatron-LM"),
    ],
)
def test_models_without_kernels(name, says):
    """One error, with what else to give."""
    with pytest.raises(InputError, match=says) as caught:
        run_profile(load_model(name), H200, 1, ModelRun())
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", ["resnet50", "bert-base", "vit-b-16"])
def test_megatron_runs_decoders(name):
    """Of the others, only PyTorch's kernels are known."""
    says = f"{name}: as Megatron-LM .* of decoders alone, such as gpt2; give a time, a rate or"

    with pytest.raises(InputError, match=says):
        run_profile(load_model(name), H200, 1, ModelRun(MEGATRON))


def refused(machine: str, **table: object) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        read_step({"batch": 16, **table}, load_model("gpt2"), load_topology(machine))
    return caught.value.problems


def test_precisions_that_a_gpu_lacks():
    """The machine's own counts, where none is named."""
    assert refused("dgx1v", precision="bf16") == ("step.precision: V100 has no products of bf16",)
    assert refused("dgx-h100", gpu="MI355X", precision="tf32") == (
        "step.precision: MI355X has no products of tf32",
    )
    assert refused("dgx-h100", kernels=MEGATRON, precision="fp32") == (
        "step.precision: as by Megatron-LM (megatron), products have 16 bits",
    )


@pytest.mark.parametrize("times", [{}, {"time": "20 ms"}, {"rate": "10 TFLOP/s"}])
@pytest.mark.parametrize("method", ["zero1", "zero2", "zero3", "fsdp", "hsdp"])
def test_no_step_gathers_parameters_of_a_type_that_a_gpu_lacks(method, times):
    """Whatever gives its times; and the precision is one more fault."""
    table = {"method": method, "sharding": {"param_dtype": "bfloat16"}, **times}
    gathered = "step.sharding.param_dtype: V100 has no products of bf16"

    assert refused("dgx1v", **table) == (gathered,)
    assert refused("dgx1v", **table, precision="bf16") == (
        "step.precision: V100 has no products of bf16", gathered,
    )  # fmt: skip
    assert read_step({"batch": 16, **table}, load_model("gpt2"), load_topology("dgx-a100"))


@pytest.mark.parametrize("kernels", [EAGER, MEGATRON])
def test_the_update_is_that_of_the_optimizer(kernels):
    """Of fewer states it takes less, as they are bytes that it moves."""
    model, run = load_model("gpt2"), ModelRun(kernels)
    adam, momentum, sgd = (
        run_profile(model, H200, 16, run, Sharding(optimizer=each)).update
        for each in ("adam", "momentum", "sgd")
    )

    assert sgd < momentum < 0.8 * adam
    assert run_profile(model, H200, 16, run).update == adam


def test_what_a_file_does_not_say_is_told(tmp_path):
    """The key, as the GPU may well have such products."""
    path = tmp_path / "l40s.toml"
    path.write_text(
        'title = "L40S"\nflops = "181 TFLOP/s"\nmemory_bandwidth = "864 GB/s"\nunits = 142'
    )

    for precision, key in ((FP32, "flops32"), (TF32, "flops_tf32")):
        says = f"the file of L40S lacks {key}, the rate of its products of {precision}"
        assert refused("switch:2", gpu=str(path), precision=precision) == (
            f"step.precision: {says}",
        )


@pytest.mark.parametrize(
    ("other", "says"), [("V100", "(A100, V100) differ"), ("", "(no model, A100) differ")]
)
def test_gpus_that_differ(other, says):
    """Each may well be known."""
    nodes = [Node(f"gpu{i}", "gpu", model=model) for i, model in enumerate(("A100", other))]

    with pytest.raises(InputError) as caught:
        gpu_for(None, nodes)
    assert says in caught.value.problems[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_machines_gpu_computes(precision):
    """Without a time, a rate or a profile; the table's words reach the kernels."""
    model = load_model("gpt2")
    table = {"batch": 16, "precision": precision, "kernels": COMPILED}
    asked = read_step(table, model, load_topology("dgx-h100"))
    own = run_profile(model, GPUS["H100"], 16, ModelRun(COMPILED, precision))

    assert asked.job.profile.seconds == pytest.approx(own.seconds)
    assert asked.job.update == pytest.approx(own.update)
    assert asked.job.gpu.title == "H100"


@pytest.mark.parametrize("name", [name for name in shipped() if not name.startswith(WITHOUT)])
def test_shipped_models_compute_in_bfloat16(name):
    """Gradients of 2 bytes are as much a model's own as those of 4."""
    model, a100 = load_model(name), load_topology("dgx-a100")
    amp = read_step({"batch": 64}, model, a100).job
    found = read_step({"batch": 64, "precision": BF16}, model, a100).job

    assert 0.0 < found.profile.seconds < amp.profile.seconds
    assert {dtypes.code("bfloat16")} == {g.dtype for g in found.model.workload.gradients}


def test_full_precision_by_constants_of_v100_is_said():
    """It measured them; others have them by default. TF32 has those of 16 bits."""

    def of(machine: str, precision: str) -> str:
        table = {"batch": 16, "precision": precision}
        return read_step(table, load_model("resnet50"), load_topology(machine)).job.profile.source

    assert of("dgx-a100", FP32).endswith("(products32 by constants of V100)")
    assert of("dgx-a100", TF32).endswith(TF32)
    assert "products" not in of("dgx1v", FP32)


def test_what_follows_a_convolution_is_fused():
    """A batch norm of 16 bits is slower than its bytes, unless it is compiled; a ReLU is not."""
    ways = [
        Launched(replace(H200, kernel=0.0), BF16, fused).convolution(
            2**12, 2**12, 64.0, 64, first=False, normed=normed
        )
        for fused in (False, True)
        for normed in (False, True)
    ]
    plain, normed, compiled, normed_compiled = (each.forward.seconds for each in ways)
    elements, units = 2.0**24 * 64, H200.units

    assert normed - plain > 1.9 * elements / (3.7e9 * units) - elements * 4 / 3e12
    assert compiled < plain < normed
    assert normed_compiled < normed


def asked(machine: str, name: str = "gpt2", **table: object):
    return read_step({"batch": 4, **table}, load_model(name), load_topology(machine)).job


@pytest.mark.parametrize(("optimizer", "values"), [("adam", 7), ("momentum", 5), ("sgd", 3)])
@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_an_update_moves_what_its_optimizer_keeps(name, optimizer, values):
    """Of each parameter, its gradient and its states; by Adam where none is named. Without states
    it is a little slower than that.
    """
    of_adam = asked("dgx-h100", name).update
    table = {"method": ["fsdp"], "sharding": {"optimizer": optimizer}}

    found = asked("dgx-h100", name, **table).update / (of_adam * values / 7)
    assert 0.999 < found < (1.06 if optimizer == "sgd" else 1.001)


def test_an_update_has_the_bytes_of_the_states():
    """Shards are in float32 though parameters are gathered in bfloat16; `bf16` has all in that."""
    wide = asked("dgx-h100").update
    mixed = {"method": ["fsdp"], "sharding": {"param_dtype": "bfloat16"}}

    assert asked("dgx-h100", **mixed).update == wide
    assert asked("dgx-h100", **mixed, precision="bf16").update == wide
    assert asked("dgx-h100", method=["fsdp"], precision="bf16").update < 0.7 * wide


def test_shards_gathered_in_16_bits_compute_in_them():
    """Without casts, as their memory has it; unless the table has a precision."""
    mixed = {"method": ["fsdp"], "sharding": {"param_dtype": "bfloat16"}}
    found, pure, amp = (
        asked("dgx-h100", **table).profile
        for table in (mixed, {"precision": "bf16"}, {**mixed, "precision": "amp"})
    )

    assert found.seconds == pure.seconds < amp.seconds == asked("dgx-h100").profile.seconds
    assert found.source == "kernels of H100, eager, bf16"


def test_shards_in_float16_need_no_bfloat16():
    """V100 has the one without the other, at the same rate."""
    mixed = {"method": ["fsdp"], "sharding": {"param_dtype": "float16"}}

    assert asked("dgx1v", **mixed).profile.seconds < asked("dgx1v").profile.seconds


V100 = replace(GPUS["V100"], kernel=0.0)
LARGE = Convolution(64, 56 * 56, 9.0 * 256, 256, (3, 3, 1))


@pytest.mark.parametrize("order", [OF_RESULTS, OF_INPUTS, OF_WEIGHTS])
def test_windows_of_float32_are_computed_by_winograd(order):
    """Faster than all products would be at the GPU's rate, by at most the four of tiles of 4 x 4;
    a window with a stride is no such one, nor are products of tensor cores.
    """
    k = Launched(V100, FP32)
    flops = 2.0 * 64 * 56 * 56 * 9 * 256 * 256
    least = flops / (V100.flops32 * V100.products32)
    strided = LARGE._replace(window=(3, 3, 2))

    assert least / 4 < k.convolved(LARGE, order).seconds < 0.6 * least
    assert k.convolved(strided, order).seconds > least
    assert Launched(V100, AMP).convolved(LARGE, order).seconds > flops / V100.flops


def test_a_window_is_read_once():
    """Whatever windows share."""
    k = Launched(replace(V100, flops32=1e18), FP32)
    small = Convolution(256, 64 * 64, 9.0 * 64, 64, (3, 3, 1))
    moved = 4.0 * (256 * 64 * 64 * 128 + 9 * 64 * 64)
    rate = V100.memory_bandwidth * V100.memory * 1.075

    assert k.convolved(small).seconds >= moved / rate
    assert k.convolved(small).seconds < 2.0 * moved / rate


def test_narrow_results_have_narrow_tiles():
    """Without tensor cores 64 columns take half of 128, with them as long: memory limits both."""
    k = Launched(V100, FP32)
    half, whole = (k.product(80 * 1280, columns, 4096).seconds for columns in (64, 128))
    assert half == pytest.approx(whole / 2, rel=0.01)

    wide = Launched(V100, AMP)
    half, whole = (wide.product(80 * 1280, columns, 4096).seconds for columns in (64, 128))
    assert half == pytest.approx(whole, rel=0.03)


@pytest.mark.parametrize(
    ("precision", "head", "picoseconds"),
    [(AMP, 64, 7.84), (AMP, 128, 14.3), (FP32, 64, 23.5), (FP32, 128, 45.8)],
)
def test_attention_of_v100_is_that_of_xformers(precision, head, picoseconds):
    """Of 1,024 sequences of 1,024 tokens, timed there (pull request 439)."""
    found = Launched(V100, precision).attention(64, 1024, 16, head, causal=False)
    scores = 64 * 16 * 1024**2

    assert found.forward.seconds / scores == pytest.approx(picoseconds * 1e-12, rel=0.02)
    assert found.backward.seconds > 2.5 * found.forward.seconds
    ampere = Launched(replace(V100, flash=True), AMP).attention(64, 1024, 16, head, causal=False)
    assert ampere.forward.seconds < 0.7 * picoseconds * 1e-12 * scores


def test_modes_of_tf_cnn_benchmarks_take_the_kernels_of_images():
    """As strategies do."""
    step = {"batch": 64, "precision": "fp32"}
    mode = asked("dgx1v", "resnet50", **step, variable_update="parameter_server")

    assert mode.profile.seconds == asked("dgx1v", "resnet50", **step).profile.seconds
    assert mode.profile.source.startswith("kernels of V100, eager, fp32")
