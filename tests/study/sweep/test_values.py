"""Values of keys as people write them, and which combinations a sweep tries."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from scipy.stats import qmc

from simreduce.study.sweep.grid import NumberInterval, Sample, check_design, combine, parse_values


@pytest.mark.parametrize(
    ("key", "text", "values"),
    [
        ("nodes", "1..5", (1, 2, 3, 4, 5)),
        ("nodes", "1..64*2", (1, 2, 4, 8, 16, 32, 64)),
        ("nodes", "1..20+8", (1, 9, 17)),
        ("nodes", "1,2,8..10", (1, 2, 8, 9, 10)),
        ("size", "8M..1G*8", (8 << 20, 64 << 20, 512 << 20)),
        ("size", "1K,64MB", (1024, 64_000_000)),
        ("size", "1M..4M+1M", (1 << 20, 2 << 20, 3 << 20, 4 << 20)),
        ("rate", "100..300TFLOP/s+100", ("100TFLOP/s", "200TFLOP/s", "300TFLOP/s")),
        ("oversubscription", "1..2+0.5", (1.0, 1.5, 2.0)),
        ("strategy", "ring,nccl+small=65536,10,direct", ("ring", "nccl+small=65536,10", "direct")),
        ("topology", "dgx1v;switch:8,bandwidth=10GB/s", ("dgx1v", "switch:8,bandwidth=10GB/s")),
        ("faithful", "true,false", (True, False)),
        ("batch", [32, "64..128*2"], (32, 64, 128)),
    ],
)
def test_lists_and_ranges(key, text, values):
    assert parse_values(key, text) == (values, [])


@given(st.integers(1, 50), st.integers(0, 200), st.integers(1, 9))
def test_a_range_has_every_step_from_its_start_and_none_beyond_its_end(low, more, step):
    found, _ = parse_values("n", f"{low}..{low + more}+{step}")
    assert found == tuple(range(low, low + more + 1, step))


def test_an_interval_is_between_its_ends():
    found, _ = parse_values("rate", "100TFLOP/s..400TFLOP/s")

    assert found == NumberInterval(Fraction(100), Fraction(400), "TFLOP/s")
    assert (found.at(0.0), found.at(0.5), found.at(1.0)) == (
        "100.0TFLOP/s", "250.0TFLOP/s", "400.0TFLOP/s",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "given", "words"),
    [
        ("nodes", "8..2", "ends before it begins"),
        ("nodes", "1..8*1", "a factor above 1"),
        ("nodes", "1,,2", "an empty value"),
        ("nodes", "1,2,1", "given twice"),
        ("nodes", [], "at least one value"),
        ("size", "1M..8M", "needs a step"),
        ("rate", "1GB/s..2TFLOP/s", "same unit"),
        ("nodes", "0.5..2.0,4", "stands alone"),
        ("nodes", "1..1000000", "more than 100,000"),
    ],
)
def test_what_is_no_list_of_values_is_said(key, given, words):
    _, [problem] = parse_values(key, given)

    assert words in problem


def test_every_value_that_cannot_be_read_is_said_and_the_others_are_there():
    found, problems = parse_values("size", ["1X", "1M", "2Y", "4M..1M*2", "1M"])

    assert found == (1 << 20,)
    assert len(problems) == 4


def test_a_long_list_is_read_at_once():
    """Not in the square of its length: 100,000 values took minutes."""
    began = time.process_time()
    found, problems = parse_values("seed", "1..100000")

    assert (len(found), problems) == (100_000, [])
    assert time.process_time() - began < 5.0


def test_a_grid_has_all_combinations_in_order_and_zipped_keys_advance_together():
    over = {"a": (1, 2), "b": ("x", "y"), "c": (10, 20)}

    assert len(combine(over, (), None)) == 8
    assert combine(over, [("a", "c")], None) == [
        {"a": 1, "b": "x", "c": 10},
        {"a": 1, "b": "y", "c": 10},
        {"a": 2, "b": "x", "c": 20},
        {"a": 2, "b": "y", "c": 20},
    ]


def test_lists_side_by_side_have_one_length_and_are_there():
    design = {"a": (1, 2), "b": (1, 2, 3)}, [("a", "b"), ("a", "c"), ("b",)], None

    text = "\n".join(check_design(*design))
    assert "a 2, b 3" in text
    assert "c has no values" in text
    assert "a is in two of them" in text
    assert "zip: b: name two keys or more" in text


def test_a_sobol_sample_is_scipys_and_a_seed_gives_the_same_again():
    over = {"x": NumberInterval(Fraction(0), Fraction(1)), "n": (1, 2, 4, 8)}
    found = combine(over, (), Sample("sobol", 16, 7))

    assert found == combine(over, (), Sample("sobol", 16, 7))
    assert found != combine(over, (), Sample("sobol", 16, 8))
    points = [(each["x"], (1, 2, 4, 8).index(each["n"]) / 4 + 0.125) for each in found]
    assert qmc.discrepancy(points) < 0.05  # far below 16 random points
    assert [sum(each["n"] == n for each in found) for n in (1, 2, 4, 8)] == [4, 4, 4, 4]


def test_an_interval_needs_a_step_or_a_sample():
    over = {"x": NumberInterval(Fraction(0), Fraction(1))}

    (problem,) = check_design(over, (), None)
    assert "or --sample" in problem
    assert len(combine(over, (), Sample("random", 5))) == 5


def test_equal_points_of_a_sample_are_one_cell():
    found = combine({"n": (1, 2)}, (), Sample("random", 50))

    assert [1, 2] == sorted(each["n"] for each in found)
