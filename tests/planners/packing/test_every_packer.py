"""What holds for all packers: every gradient once, plans that are proved, messages that help."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.plan import verify
from simreduce.planners.layouts import layout
from simreduce.planners.packing import PACKERS
from simreduce.planners.packing.arrangement import place
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload
from tests.thorough import examples

OPTIONS = {
    "packs": ["1", "3", "8"],
    "small": ["64,10", "1K,2", "1M,16", "40"],
    "repack": ["1", "5", "0,fp16", "4,fp16"],
    "bucket": ["0", "1", "100", "1M"],
    "merge": ["1", "3", "32"],
    "ddp": [None, "0.0001", "25"],
    "fusion": [None, "0", "100", "1K"],
}
ANY_OPTION = st.sampled_from([(key, value) for key, values in OPTIONS.items() for value in values])

SHAPES = {n: layout(load_topology(f"full:{n}")) for n in range(1, 6)}


def options_text(option):
    key, value = option
    return f"+{key}" if value is None else f"+{key}={value}"


@st.composite
def lists(draw, most=12):
    """Gradients of one dtype or of several, some of them empty."""
    kinds = draw(
        st.sampled_from([["float32"], ["float16"], ["float32", "float16"], list(dtypes.NAMES)])
    )
    one = st.tuples(st.integers(0, 70), st.sampled_from(kinds))
    pairs = draw(st.lists(one, min_size=1, max_size=most))
    return tuple(Gradient(f"g{i}", n, dtypes.code(d)) for i, (n, d) in enumerate(pairs))


def test_every_packer_is_tested_here():
    assert set(PACKERS) == set(OPTIONS)


REFUSALS = re.compile(
    "needs one dtype; small, ddp and fusion keep|2 GPUs or more|collective only|use packs=K|leave "
    "it out"
)
"""Every one says what would be accepted."""


@given(lists(most=400), ANY_OPTION, st.booleans())
def test_every_gradient_is_in_one_group(listed, option, faithful):
    key, value = option
    apart = key not in ("packs", "bucket", "repack")  # keeps dtypes apart
    try:
        arrangement = PACKERS[key](value).arrange(listed, faithful=faithful)
        fields = [f for group in place(arrangement, listed, 7) for f in group]
    except StrategyError as error:
        if apart or not REFUSALS.search(str(error)):
            raise
        return

    assert list(range(len(listed))) == sorted(i for group in arrangement.groups for i in group)
    assert all(arrangement.groups)
    flat = [listed[i] for group in arrangement.groups for i in group]
    assert [(g.elements, g.dtype) for g in flat] == [(f.hi - f.lo, f.dtype) for f in fields]
    assert all(f.hi <= f.end == after.lo for f, after in pairwise(fields))


@settings(max_examples=examples(300))
@given(
    lists(),
    ANY_OPTION,
    st.sampled_from(["copy_to_gpus", "xring", "ring", "psgpu:20:xring", "collective"]),
    st.sampled_from(["", "+mean"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_plans_are_proved_or_refused_with_a_reason(listed, option, spec, mean, n, faithful):
    strategy = f"{spec}{options_text(option)}{mean}"
    try:
        plan = compile_plan(strategy, Workload("random", listed), SHAPES[n], faithful=faithful)
    except StrategyError as error:
        if not REFUSALS.search(str(error)):
            raise
        return

    assert verify(plan) == []


@pytest.mark.parametrize("option", [(k, v) for k, values in OPTIONS.items() for v in values])
def test_float32_gradients_are_refused_by_no_packer(option):
    listed = tuple(Gradient(f"g{i}", n) for i, n in enumerate((7, 0, 64, 1, 33)))
    plan = compile_plan(f"collective{options_text(option)}", Workload("float32", listed), SHAPES[3])

    assert verify(plan) == []


@pytest.mark.parametrize("option", [(k, v[-1]) for k, v in OPTIONS.items() if k != "merge"])
def test_hundreds_of_gradients(option):
    listed = tuple(Gradient(f"g{i}", i * i % 97) for i in range(300))
    plan = compile_plan(f"xring{options_text(option)}", Workload("many", listed), SHAPES[4])

    assert verify(plan) == []


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("packs", "packs: needs a value, for example packs=8"),
        ("packs=0", "the number of packs is a whole number from 1"),
        ("packs=" + "9" * 5000, "the number of packs is a whole number from 1"),
        ("small", "for example small=64K,10"),
        ("small=0", "the size must be 1 bytes or more"),
        ("small=64K,0", "the most members of a pack is a whole number from 1"),
        ("small=64Q,10", "'64Q' is not a size"),
        ("repack=0", "repack=0 does nothing"),
        ("repack=8,fp32", "only fp16 is known"),
        ("bucket=1e400", "too large"),
        ("bucket=-1", "'-1' is not a size"),
        ("merge=two", "the number of gradients per scope is a whole number"),
        ("ddp=0", "a number of MiB above 0"),
        ("fusion=", "for example fusion=128M"),
        ("bukcet=25M", "did you mean 'bucket'"),
        (
            "horovod",
            "known: +packs, +small, +repack, +bucket, +merge, +ddp, +fusion, +chunk=BYTES, +mean",
        ),
        ("packs=8+merge=2", "two packers, +packs=8 and +merge=2; give one"),
        ("ddp+ddp", "two packers"),
    ],
)
def test_what_an_option_does_not_accept(option, says):
    with pytest.raises(StrategyError) as caught:
        parse_strategy(f"ring+{option}")

    assert says in str(caught.value)


def test_every_fault_of_an_option_is_named():
    with pytest.raises(StrategyError) as caught:
        parse_strategy("rnig+small=64Q,0")

    assert len(caught.value.problems) == 3


def test_a_pack_of_several_dtypes_says_what_keeps_them_apart():
    listed = (Gradient("a", 4), Gradient("b", 4, dtypes.code("float16")))
    with pytest.raises(
        StrategyError, match=r"ring\+packs=2: a pack of float32 and float16 cannot be concatenated"
    ):
        compile_plan("ring+packs=2", Workload("mixed", listed), SHAPES[2])
