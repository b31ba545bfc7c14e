"""The all-reduce spec of tf_cnn_benchmarks: the rows below are what `parse_all_reduce_spec` of its
`allreduce.py` (master 8fb7907) gives.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.strategy import UPSTREAM, Range, assign, parse_all_reduce_spec, parse_spec
from simreduce.workload.loader import load_workload


@pytest.mark.parametrize(
    ("spec", "ranges"),
    [
        ("collective", [("collective", 1, -1)]),
        ("collective#2", [("collective", 2, -1)]),
        ("xring", [("xring", 1, -1)]),
        ("xring#2", [("xring", 2, -1)]),
        ("nccl", [("nccl", 1, -1)]),
        ("nccl/xring", [("nccl/xring", 1, -1)]),
        ("nccl/xring#2", [("nccl/xring", 2, -1)]),
        ("nccl/rechd", [("nccl/rechd", 1, -1)]),
        ("nccl/pscpu#2", [("nccl/pscpu", 2, -1)]),
        ("pscpu", [("pscpu", 1, -1)]),
        ("psgpu#4", [("psgpu", 4, -1)]),
        ("pscpu/pscpu#2", [("pscpu/pscpu", 2, -1)]),
        ("pscpu:2k:pscpu#2:64k:xring", [("pscpu", 1, 2048), ("pscpu", 2, 65536), ("xring", 1, -1)]),
        ("pscpu:32k:xring", [("pscpu", 1, 32768), ("xring", 1, -1)]),
        ("psgpu#4:1M:nccl", [("psgpu", 4, 1048576), ("nccl", 1, -1)]),
        ("pscpu:0:xring", [("pscpu", 1, 0), ("xring", 1, -1)]),
        ("pscpu:-1:xring", [("pscpu", 1, -1), ("xring", 1, -1)]),
        ("pscpu:2T:xring", [("pscpu", 1, 2199023255552), ("xring", 1, -1)]),
        ("xring#0", [("xring", 0, -1)]),
        ("xring#-1", [("xring", -1, -1)]),
        ("xring#2#3", [("xring", 2, -1)]),
    ],
)
def test_specs_are_read_as_upstream_reads_them(spec, ranges):
    """Algorithm, shards and limit in elements of each range; the last has no limit."""
    assert ranges == parse_all_reduce_spec(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "all_reduce_spec () contains invalid alg "),
        ("xring:", "all_reduce_spec not well formed: xring:"),
        ("xring:4k", "all_reduce_spec not well formed: xring:4k"),
        ("xring:foo:pscpu", "all_reduce_spec (xring:foo:pscpu) contains non-integer range foo"),
        ("ring", "all_reduce_spec (ring) contains invalid alg ring"),
        ("XRING", "all_reduce_spec (XRING) contains invalid alg XRING"),
        ("pscpu/xring", "all_reduce_spec (pscpu/xring) contains invalid alg pscpu/xring"),
        ("nccl/psgpu", "all_reduce_spec (nccl/psgpu) contains invalid alg nccl/psgpu"),
        ("rechd", "all_reduce_spec (rechd) contains invalid alg rechd"),
        ("psgpu/psgpu", "all_reduce_spec (psgpu/psgpu) contains invalid alg psgpu/psgpu"),
        ("pscpu: 32k:xring", "all_reduce_spec (pscpu: 32k:xring) contains non-integer range  32k"),
        ("pscpu:1.5k:xring", "all_reduce_spec (pscpu:1.5k:xring) contains non-integer range 1.5k"),
        ("pscpu:2t:xring", "all_reduce_spec (pscpu:2t:xring) contains non-integer range 2t"),
        ("pscpu:3m:xring", "all_reduce_spec (pscpu:3m:xring) contains non-integer range 3m"),
        ("pscpu:0x10:xring", "all_reduce_spec (pscpu:0x10:xring) contains non-integer range 0x10"),
        # Upstream means this message, but building it fails with a TypeError.
        ("xring#x", "all_reduce_spec (xring#x) contains non-integer #shards x"),
        ("pscpu#1k", "all_reduce_spec (pscpu#1k) contains non-integer #shards 1k"),
    ],
)
def test_what_upstream_refuses_is_a_value_error_that_begins_with_its_words(spec, message):
    """A bad shard count is a ValueError too."""
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_all_reduce_spec(spec)

    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, StrategyError)


@pytest.mark.parametrize(
    ("limit", "elements"), [("-5", -5), ("+5", 5), (" 7", 7), ("1_000", 1000), ("007", 7)]
)
def test_a_limit_without_a_suffix_is_any_whole_number(limit, elements):
    """As Python's `int` reads it, which is what upstream asks."""
    assert elements == parse_all_reduce_spec(f"pscpu:{limit}:xring")[0].limit


@pytest.mark.parametrize(
    ("suffix", "factor"), [("k", 2**10), ("K", 2**10), ("M", 2**20), ("G", 2**30), ("T", 2**40)]
)
def test_the_suffix_of_a_limit_is_a_power_of_1024(suffix, factor):
    """Only kilo has a small letter."""
    assert 3 * factor == parse_all_reduce_spec(f"pscpu:3{suffix}:xring")[0].limit


def test_every_fault_of_a_spec_is_told_at_once():
    """Two unknown algorithms, a limit and a shard count."""
    with pytest.raises(StrategyError) as caught:
        parse_spec("rink#x:foo:xrinng", UPSTREAM)

    assert (
        "all_reduce_spec (rink#x:foo:xrinng) contains invalid alg rink (did you mean 'xring'?)",
        "all_reduce_spec (rink#x:foo:xrinng) contains non-integer #shards x",
        (
            "all_reduce_spec (rink#x:foo:xrinng) contains non-integer range foo "
            "(a limit is a number of elements, with a suffix K, k, M, G or T)"
        ),
        "all_reduce_spec (rink#x:foo:xrinng) contains invalid alg xrinng (did you mean 'xring'?)",
    ) == caught.value.problems


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 5000 + "k", "9" * 5000 + "T"])
def test_a_number_too_long_to_be_one_is_refused(number):
    """Python itself refuses to read thousands of digits; that is no reason for another error."""
    with pytest.raises(StrategyError, match="contains non-integer"):
        parse_all_reduce_spec(f"pscpu:{number}:xring")
    with pytest.raises(StrategyError, match="contains non-integer"):
        parse_all_reduce_spec(f"pscpu#{number}")


@given(st.text(alphabet="xring pscugl/#:0123456789kKMGT-+_", max_size=30))
def test_any_text_is_read_or_refused(text):
    """Nothing but StrategyError comes out, and what is read has one range more than limits."""
    try:
        ranges = parse_spec(text, [*UPSTREAM, *ALGORITHMS])
    except StrategyError:
        return

    assert text.count(":") // 2 + 1 == len(ranges)
    assert -1 == ranges[-1].limit


whole = st.integers(-3, 10**6)
ranges_of = st.lists(st.tuples(st.sampled_from(UPSTREAM), whole, whole), min_size=1, max_size=4)


@given(ranges_of)
def test_a_spec_written_out_reads_back(parts):
    """`alg#shards:limit:...` for any algorithms, shards and limits."""
    spec = ":".join(f"{alg}#{shards}:{limit}" for alg, shards, limit in parts).rpartition(":")[0]

    assert [*parts[:-1], (*parts[-1][:2], -1)] == parse_all_reduce_spec(spec)


@pytest.mark.parametrize(
    ("one", "text"), [(Range("xring"), "xring"), (Range("psgpu", 4, 10), "psgpu#4")]
)
def test_a_range_prints_as_its_spec(one, text):
    """Without the limit, and without a single shard."""
    assert text == str(one)


def _sizes(model: str) -> list[int]:
    return [gradient.elements for gradient in load_workload(model).gradients]


def test_a_limit_counts_elements_and_is_inclusive():
    """2048 elements are small, 2049 are not; each range keeps the order of the gradients."""
    assert [[0, 2], [1, 3]] == assign(
        parse_all_reduce_spec("pscpu:2k:xring"), [2048, 2049, 10, 65536]
    )


@pytest.mark.parametrize(
    ("model", "spec", "expected"),
    [
        (
            "resnet50",
            "pscpu:2k:pscpu#2:64k:xring",
            [(107, 54_121), (19, 713_920), (35, 24_791_040)],
        ),
        ("vgg16", "pscpu:2k:pscpu#2:64k:xring", [(15, 6_953), (3, 45_056), (14, 138_309_632)]),
        (
            "inception3",
            "pscpu:2k:pscpu#2:64k:xring",
            [(96, 19_081), (20, 442_880), (74, 23_357_440)],
        ),
        ("resnet50", "pscpu:32k:xring", [(116, 198_697), (45, 25_360_384)]),
        ("vgg16", "pscpu:32k:xring", [(17, 15_145), (15, 138_346_496)]),
    ],
)
def test_models_fall_into_the_ranges_that_upstream_gives_them(model, spec, expected):
    """Tensors and elements per range, from running tf_cnn_benchmarks' own split on its models'
    gradients.
    """
    sizes = _sizes(model)
    taken = assign(parse_all_reduce_spec(spec), sizes)

    assert expected == [(len(indices), sum(sizes[i] for i in indices)) for indices in taken]


@given(ranges_of, st.lists(st.integers(0, 2 * 10**6), max_size=20))
def test_every_gradient_goes_to_the_first_range_that_takes_it(parts, sizes):
    """Each to exactly one, none is left, and a negative limit takes everything."""
    ranges = [Range(*part) for part in parts[:-1]] + [Range(*parts[-1][:2])]
    taken = assign(ranges, sizes)

    first = [next(i for i, r in enumerate(ranges) if r.limit < 0 or n <= r.limit) for n in sizes]
    assert [[i for i, r in enumerate(first) if r == k] for k in range(len(ranges))] == taken
