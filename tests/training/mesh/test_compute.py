"""Kernels by hand, on a GPU of round figures; and which GPU a scenario means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.training.eager import MEGATRON
from simreduce.training.gpus import GPUS, STATED, Gpu, Kernels, gpu_of, load_gpu
from simreduce.training.interference import Beside
from simreduce.training.mesh import Mesh, MeshJob
from simreduce.training.mesh.mesh_table import parse_mesh
from simreduce.training.mesh.passes import Costs, MeshPasses
from simreduce.training.step_errors import ask, step_interval
from simreduce.workload.decoder import DECODERS
from simreduce.workload.loader import load_decoder

ROUND = Gpu("round", 100e12, 200e12, 1e12, 100, products=0.5, products8=0.5, attention=0.25,
            memory=0.5, kernel=0.0, host=0.0)  # fmt: skip
"""50 TFLOP/s in products, 100 of 8 bits, 25 in attention; 0.5 TB/s."""


def test_a_product_takes_whole_waves_of_tiles():
    """100 units with a tile of 128 x 128 each: 101 tiles take two waves."""
    kernels = Kernels(ROUND)
    wave = 2 * 100 * 128 * 128 * 4096 / 50e12

    assert kernels.product(10 * 128, 10 * 128, 4096) == pytest.approx(wave, rel=1e-12)
    assert kernels.product(101 * 128, 128, 4096) == pytest.approx(2 * wave, rel=1e-12)
    assert kernels.product(10 * 128 - 5, 10 * 128 - 5, 4096) == kernels.product(1280, 1280, 4096)
    assert kernels.product(5 * 128, 10 * 128, 4096, count=2) == kernels.product(1280, 1280, 4096)


def test_a_thin_product_takes_its_bytes():
    """One token times a matrix: it reads 2 bytes of each weight."""
    found = Kernels(replace(ROUND, products=1.0)).product(1, 12800, 12800)

    assert found == pytest.approx(2 * (12800 + 12800 * 12800 + 12800) / 0.5e12, rel=1e-12)


def test_products_of_8_bits_beside_some_of_16():
    """Equal shapes of both kinds are apart."""
    kernels = Kernels(ROUND, bits=8)
    eight, sixteen = (kernels.product(1280, 1280, 8192, bits=bits) for bits in (0, 16))

    assert sixteen == pytest.approx(2 * eight, rel=1e-12)
    assert sixteen == Kernels(ROUND).product(1280, 1280, 8192)


def test_the_gradients_of_a_product_are_products():
    """For inputs and for weights; backward takes as long twice if all are whole waves."""
    found = Kernels(ROUND).linear(1280, 1280, 1280)

    assert found.forward == found.inputs == found.weights > 0
    assert 1 == found.kernels


def test_fused_attention_skips_what_a_mask_hides():
    """4 s s h FLOPs, half of them; backward has five products to forward's two."""
    found = Kernels(ROUND).fused_attention(2048, 2048, 1024, causal=True)

    assert found.forward == pytest.approx(2 * 2048 * 2048 * 1024 / 25e12, rel=1e-12)
    assert found.inputs == pytest.approx(2.5 * found.forward, rel=1e-12)


def test_other_kernels_take_bytes():
    """Of each element, forward and backward."""
    found = Kernels(ROUND).moves(1e6, (4.0, 8.0))

    assert (found.forward, found.inputs) == pytest.approx((8e-6, 16e-6), rel=1e-12)


def test_a_gpu_is_known_by_its_model():
    """With the machine's memory; the longest name that fits."""
    assert GPUS["A100"].flops == gpu_of("A100-SXM4-80GB").flops
    assert 1e12 == gpu_of("A100-SXM4-80GB", 1e12).memory_bandwidth
    assert "MI300X" == gpu_of("AMD Instinct MI300X OAM").title
    assert gpu_of("GeForce") is None
    assert ("A40", None) == (gpu_of("NVIDIA A40").title, gpu_of("RTX A4000"))


@pytest.mark.parametrize(
    ("printed", "title", "teraflops", "terabytes"),
    [  # of data sheets, dense
        ("NVIDIA L40S", "L40S", 362, 0.864),
        ("NVIDIA A100 80GB PCIe", "A100", 312, 1.935),
        ("NVIDIA GeForce RTX 4090", "4090", 165.2, 1.008),
        ("NVIDIA H200 NVL", "H200 NVL", 835.5, 4.8),
        ("NVIDIA GB300", "GB300", 2500, 8.0),
        ("Tesla T4", "T4", 65, 0.32),
    ],
)
def test_a_gpu_is_named_as_programs_print_it(printed, title, teraflops, terabytes):
    gpu = load_gpu(printed, None)

    assert (gpu.title, gpu.flops / 1e12) == (title, teraflops)
    assert gpu.memory_bandwidth == pytest.approx(terabytes * 1e12)
    assert gpu.lent() or title == "A100"


def test_the_slowest_of_many_by_distribution():
    """Of 20,000 draws of 64 GPUs each, the parts in which the slowest is below a percentile."""
    gpu = replace(GPUS["H100"], spread=0.03)
    drawn = np.random.default_rng(1).normal(1.0, 0.03, (20_000, 64)).max(axis=1)

    for part in (0.5, 0.9, 0.99):
        assert np.mean(drawn <= gpu.slowest(64, part)) == pytest.approx(part, abs=0.01)
    assert drawn.mean() == pytest.approx(gpu.slowest(64), rel=1e-3)
    assert gpu.slowest(1, 0.5) == pytest.approx(1.0)


def test_a_file_overrides_the_machines_gpu(tmp_path):
    """What it leaves out stays."""
    path = tmp_path / "mine.toml"
    path.write_text('flops = "1 PFLOP/s"\nproducts = 0.9\n', "utf-8")
    found = load_gpu(str(path), ROUND)

    assert ("mine.toml", 1e15, 0.9, 1e12, 100) == (
        found.title, found.flops, found.products, found.memory_bandwidth, found.units,
    )  # fmt: skip


def test_blocks_of_products_come_in_clusters_from_hopper_on(tmp_path):
    """On no GPU of AMD, though it has products of 8 bits; a file says so, or the machine's GPU."""
    path = tmp_path / "mine.toml"

    def mine(text, base):
        path.write_text(text, "utf-8")
        gpu = load_gpu(str(path), GPUS[base])
        return gpu.next_to(Beside(16)).slowed.clusters

    hopper = {"H100", "H100-96GB", "H100-PCIE", "H20", "H800", "H200"}
    hopper |= {"H100 NVL", "H200 NVL"}
    assert {*hopper, "B200", "B300", "GB300"} == {name for name in GPUS if GPUS[name].clusters}
    assert mine('host = "20 us"\n', "H200")
    assert not mine('flops8 = "733 TFLOP/s"\n', "A100")
    assert mine("clusters = true\n", "A100")
    assert not mine("clusters = false\n", "H200")


def test_every_fault_of_a_gpu_at_once(tmp_path):
    """An unknown name has a nearest; a file without a machine's GPU needs its rates."""
    with pytest.raises(InputError, match=r"no GPU 'A10O' \(did you mean 'A10'\?\)"):
        load_gpu("A10O", None)
    path = tmp_path / "mine.toml"
    path.write_text('flps = "1 PFLOP/s"\nproducts = 2\n', "utf-8")
    with pytest.raises(InputError) as caught:
        load_gpu(str(path), None)
    found = [problem.removeprefix(f"{path}: ").split(":")[0] for problem in caught.value.problems]

    assert ["flops", "flps", "memory_bandwidth", "products", "units"] == sorted(found)
    assert any("did you mean 'flops'" in problem for problem in caught.value.problems)


@pytest.mark.parametrize(("count", "kernels"), [(4, 3), (8, 3), (2, 7), (6, 7)])
def test_softmax_is_one_kernel_for_multiples_of_four(count, kernels):
    """Else five; of each the host knows."""
    found = Kernels(GPUS["A100"]).unfused_attention(64, 64, 16, count, dropout=False)

    assert kernels == found.kernels


@pytest.mark.parametrize("model", DECODERS)
def test_no_older_gpu_is_faster(model):
    """V100, A100, H100, B200, a block of each decoder with its embedding; none waits for links."""
    shape = replace(DECODERS[model][0], blocks=1, dense=min(DECODERS[model][0].dense, 1))
    took = []
    for name in ("V100", "A100", "H100", "B200"):
        own = MeshJob(
            shape, Mesh(), GPUS[name], 1, 1, min(DECODERS[model][1], 4096), "1f1b", 1, (1,)
        )
        passes = MeshPasses(own, Costs(Setup("switch:1"), own.mesh))
        took.append(sum(each.seconds for kind in "FB" for each in passes.layers(0, kind)))

    assert took == sorted(took, reverse=True)
    assert len(set(took)) == 4


def test_constants_of_others_are_said_and_make_times_less_sure():
    """MI300X has measured products, and the host of H100; a file's own constants count as known."""
    h100, b200, mi300x = (GPUS[name] for name in ("H100", "B200", "MI300X"))

    assert not h100.nominal()
    assert "kernels of B200 are nominal: products, memory, host by constants of H100" == (
        b200.nominal()
    )
    assert "host by constants of H100" == mi300x.lent()
    own, lent = step_interval(ask(h100, MEGATRON)), step_interval(ask(b200, MEGATRON))
    assert lent.low < own.low < 1.0 < own.high < lent.high
    assert "another GPU's" in lent.why


def test_a_file_says_what_was_measured(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('host = "20 us"\n', "utf-8")
    found = load_gpu(str(path), GPUS["MI300X"])

    assert ("", STATED, "arXiv:2510.27583") == (
        found.lent(), found.sources["host"], found.sources["products"],
    )  # fmt: skip


def test_a_file_of_the_machines_own_rate_changes_nothing(tmp_path):
    """V100 has no FlashAttention and no bfloat16, whatever else a file says; a file may say so."""
    path, v100 = tmp_path / "mine.toml", GPUS["V100"]
    path.write_text('flops = "125 TFLOP/s"\n', "utf-8")
    same = load_gpu(str(path), v100)
    path.write_text('flops = "125 TFLOP/s"\nbf16 = true\nflash = true\n', "utf-8")
    other = load_gpu(str(path), v100)

    assert (same.flops, same.bf16, same.flash) == (v100.flops, False, False)
    assert "no products of bf16" in same.lacks("bf16")
    assert (other.bf16, other.flash, other.lacks("bf16")) == (True, True, "")


def test_a_file_of_another_chip_has_no_rates_of_the_machines(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('flops = "1 PFLOP/s"\nflops_tf32 = "500 TFLOP/s"\n', "utf-8")
    found = load_gpu(str(path), GPUS["H100"])

    assert "lacks flops8" in found.lacks("fp8")
    assert "lacks flops32" in found.lacks("fp32")
    assert "" == found.lacks("tf32") == found.lacks("bf16")
    # without FlashAttention, attention of TF32 computes in float32
    assert "lacks flops32" in replace(found, flash=False).lacks("tf32")


@pytest.mark.parametrize(
    ("topology", "precision", "wrong"),
    [("dgx-a100", "fp8", "A100"), ("dgx1v", "fp8", "V100"), ("dgx1v", "bf16", "V100"),
     ("dgx1v", "fp16", ""), ("dgx-h100", "fp8", "")],
)  # fmt: skip
def test_precisions_that_a_gpu_lacks_are_refused(topology, precision, wrong):
    faults = Faults("f")
    table = {"mesh": ["tp=4"], "global_batch": 8, "precision": precision}
    parse_mesh(table, load_decoder("gpt2"), Setup(topology, "nccl"), faults)

    assert wrong == "" or faults.problems == [
        f"f: step.precision: {wrong} has no products of {precision}"
    ]
    assert bool(faults.problems) == bool(wrong)


def test_a_gpu_without_bfloat16_computes_in_float16():
    found = parse_mesh(
        {"mesh": ["tp=4"], "global_batch": 8}, load_decoder("gpt2"), Setup("dgx1v", "nccl"),
        Faults("f"),
    )  # fmt: skip

    assert {("fp16", 16)} == {(job.half, job.bits) for job in found.jobs}
