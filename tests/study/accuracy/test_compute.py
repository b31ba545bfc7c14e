"""What one GPU computes: predictions of the model of meshes beside times that nothing was fitted
to.
"""

from __future__ import annotations

from statistics import median

import pytest

from simreduce.errors import InputError
from simreduce.files.published import LAYERS, MOVES, PRODUCT, timed_compute
from simreduce.report.accuracy import COMPUTE
from simreduce.study.accuracy import AccuracyComparison, group_predicted
from simreduce.study.accuracy.kernels import find_constant, predict_compute

HEADER = "gpu,kind,shape,bits,time_us,low_us,high_us\n"


@pytest.fixture(scope="module")
def points():
    return predict_compute(timed_compute())


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_layers_and_products_are_near_times_that_nothing_was_fitted_to(points, gpu):
    groups = group_predicted((p for p in points if p.of.gpu == gpu), lambda p: p.of.group)
    assert len(groups[LAYERS].points) == 9
    assert groups[LAYERS].median < 0.06
    assert groups[LAYERS].worst < 0.2
    assert len(groups[PRODUCT.format(16)].points) > 70
    assert groups[PRODUCT.format(16)].median < 0.13


def test_no_prediction_is_faster_than_the_data_sheet_allows(points):
    for point in points:
        if point.of.kind == "product" and point.of.bits == 16:
            rows, columns, inner = point.of.shape
            assert point.predicted > 2.0 * rows * columns * inner / 989.4e12


def test_the_constant_that_fits_removes_the_bias(points):
    groups = group_predicted(points, lambda p: (p.of.gpu, p.of.group))
    for gpu in ("H100", "H200"):
        found = find_constant(groups[gpu, PRODUCT.format(16)])
        scale = found.now / found.fits
        errors = scale * (1.0 + groups[gpu, PRODUCT.format(16)].errors) - 1.0
        assert median(errors) == pytest.approx(0.0, abs=1e-9)


def test_times_are_ordered_and_of_known_kinds(points):
    for point in points:
        assert point.of.low <= point.of.seconds <= point.of.high


def test_a_file_of_another_gpu_is_compared(tmp_path):
    file = tmp_path / "a100.csv"
    file.write_text(HEADER + "NVIDIA A100-SXM4-80GB,residual,8192x4096,16,120,119,121\n")
    (point,) = predict_compute(timed_compute(str(file)))
    assert point.of.group == MOVES
    assert point.predicted == pytest.approx(6 * 8192 * 4096 / (2.039e12 * 0.818) + 2e-6)
    found = AccuracyComparison([point], about={"source": "here"})
    assert any("memory" in line for line in COMPUTE.lines(found))
    assert COMPUTE.document.write(found)["groups"][0]["constant"] == "memory"


def test_every_fault_of_a_file_is_said_at_once(tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(HEADER + "H100,residul,8192x4096,16,1,1,1\nH100,gelu,8x0,16,1,1,fast\n")
    with pytest.raises(InputError) as caught:
        timed_compute(str(file))
    words = str(caught.value)
    assert "line 2" in words
    assert "residual" in words
    assert "shape" in words
    assert "high_us" in words


def test_a_gpu_that_is_not_known_is_named(tmp_path):
    file = tmp_path / "one.csv"
    file.write_text(HEADER + "P40,gelu,8x8,16,1,1,1\n")
    with pytest.raises(InputError, match="no GPU 'P40'"):
        predict_compute(timed_compute(str(file)))


@pytest.mark.parametrize("shape", ["8x8", "8x8x8x8"])
def test_a_product_has_three_sides(tmp_path, shape):
    file = tmp_path / "one.csv"
    file.write_text(HEADER + f"H100,product,{shape},16,1,1,1\n")
    with pytest.raises(InputError, match="shape"):
        timed_compute(str(file))


def test_a_row_has_bits_that_its_kernel_is_known_of(tmp_path):
    """All at once, rather than times of other bits."""
    file = tmp_path / "bits.csv"
    rows = (
        "H100,product,8x8x8,64", "V100,convolution_results,8x8x8x8x3x1,8",
        "H100,attention_forward,8x8x8x8,32", "H100,adamw,8x8,16",
    )  # fmt: skip
    file.write_text(HEADER + "".join(f"{row},1,1,1\n" for row in rows))
    with pytest.raises(InputError) as caught:
        timed_compute(str(file))

    assert [
        f"{file}: line 2: bits: product has 8 or 16 or 32, not 64",
        f"{file}: line 3: bits: convolution_results has 16 or 32, not 8",
        f"{file}: line 4: bits: attention_forward has 16, not 32",
        f"{file}: line 5: bits: adamw has 32, not 16",
    ] == [*caught.value.problems]


def test_every_product_that_a_gpu_lacks_is_said_at_once(tmp_path):
    file = tmp_path / "eight.csv"
    rows = (
        "A100,product,8x8x8,8",
        "P40,gelu,8x8,16",
        "V100,product,8x8x8,8",
        "V100,product,8x8x8,32",
    )
    file.write_text(HEADER + "".join(f"{row},1,1,1\n" for row in rows))
    with pytest.raises(InputError) as caught:
        predict_compute(timed_compute(str(file)))

    assert caught.value.problems[1:] == (
        "A100, product 8x8x8, 8 bits: A100 has no products of fp8",
        "V100, product 8x8x8, 8 bits: V100 has no products of fp8",
    )
    assert "no GPU 'P40'" in caught.value.problems[0]
