"""A strategy as users type it: `SPEC[+packs=K][+mean]`."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.packing import PACKERS, ConcatAndSplit
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.planners.strategy import parse_strategy, split_strategies


@pytest.mark.parametrize(
    ("text", "collective", "does"),
    [
        ("symmetric:engine", "all_reduce", "all_gather and all_to_all"),
        ("nccl:pat", "all_reduce", "reduce_scatter and all_gather"),
        ("rccl:tree+ll", "all_gather", "all_reduce"),
        ("oneshot", "broadcast", "all_reduce"),
    ],
)
def test_an_algorithm_of_other_collectives_says_of_which(text, collective, does):
    with pytest.raises(StrategyError) as caught:
        parse_strategy(text, collective)

    assert (f"{text}: it does {does}, and this is {collective}",) == caught.value.problems


@pytest.mark.parametrize(
    ("text", "spec", "packing", "packer", "mean"),
    [
        ("ring", "ring", "none", NoPacking(), False),
        ("hierarchical_copy+packs=8", "hierarchical_copy", "packs=8", ConcatAndSplit(8), False),
        ("xring#2+mean", "xring#2", "none", NoPacking(), True),
        ("pscpu:32k:xring+packs=2+mean", "pscpu:32k:xring", "packs=2", ConcatAndSplit(2), True),
        ("psgpu#4+mean+packs=4096", "psgpu#4", "packs=4096", ConcatAndSplit(4096), True),
    ],
)
def test_a_strategy_is_a_spec_with_options_in_any_order(text, spec, packing, packer, mean):
    """Every part is kept, and the text itself."""
    strategy = parse_strategy(text)

    assert (text, spec, packing, packer, mean) == (
        str(strategy),
        strategy.spec,
        strategy.packing,
        strategy.packer,
        strategy.mean,
    )


@pytest.mark.parametrize("text", [" ring ", "\tring", "ring\n"])
def test_space_around_a_strategy_does_not_count(text):
    """As when it is read from a file."""
    assert parse_strategy("ring") == parse_strategy(text)


def test_every_algorithm_is_a_strategy():
    """By its name alone."""
    assert [(name, 1, -1) for name in ALGORITHMS] == [
        parse_strategy(name).ranges[0] for name in ALGORITHMS
    ]


def test_every_fault_of_a_strategy_is_told_at_once():
    """In the spec and in the options, each with the nearest spelling where there is one."""
    text = "rng#x+pack=8+packs=0+men+packs=2+packs=3+packs=-1+zzz"
    with pytest.raises(StrategyError) as caught:
        parse_strategy(text)

    bad = "the number of packs is a whole number from 1 to 4096, for example packs=8"
    assert (
        "strategy (rng#x) contains invalid alg rng (did you mean 'ring'?)",
        "strategy (rng#x) contains non-integer #shards x",
        f"{text}: unknown option +pack=8 (did you mean 'packs'?)",
        f"{text}: packs: '0': {bad}",
        f"{text}: unknown option +men (did you mean 'mean'?)",
        f"{text}: two packers, +packs=0 and +packs=2; give one",
        f"{text}: two packers, +packs=2 and +packs=3; give one",
        f"{text}: two packers, +packs=3 and +packs=-1; give one",
        f"{text}: packs: '-1': {bad}",
        (
            f"{text}: unknown option +zzz; known: "
            f"{', '.join('+' + key for key in (*PACKERS, 'chunk=BYTES', 'mean'))}"
        ),
    ) == caught.value.problems


@pytest.mark.parametrize(
    "packs", ["0", "-1", "1.5", "x", " 8", "4097", "99999999999", "9" * 5000, "²"]
)
def test_a_number_of_packs_is_a_whole_number_within_reason(packs):
    """From 1 to 4096."""
    with pytest.raises(StrategyError, match="the number of packs is a whole number from 1 to 4096"):
        parse_strategy(f"ring+packs={packs}")


@pytest.mark.parametrize(
    "text", ["", "+", "+packs=8", "ring+", "ring+mean=1", "ring+packs", "Ring", "ring +mean"]
)
def test_half_a_strategy_is_refused(text):
    """Nothing stands for a default."""
    with pytest.raises(StrategyError):
        parse_strategy(text)


@given(st.text(alphabet="ring+packs=8men#:xk0 ", max_size=24))
def test_any_text_is_a_strategy_or_a_strategy_error(text):
    """And what is read prints as it was typed."""
    try:
        strategy = parse_strategy(text)
    except StrategyError:
        return

    assert text.strip() == str(strategy)


_TEXTS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(
            ["ring", "xring#2", "pscpu:32k:xring", "nccl/rechd", "ring/halving_doubling"]
        ),
        st.sampled_from(
            ["", "+packs=8", "+small=64K", "+small=64K,10", "+repack=8", "+repack=8,fp16"]
        ),
        st.sampled_from(["", "+mean", "+chunk=1M"]),
    ),
)


@given(st.lists(_TEXTS | st.just("all"), min_size=1))
def test_strategies_with_commas_between_come_apart(texts):
    """Also those of packers that have a comma of their own."""
    assert texts == split_strategies(",".join(texts))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ring,drect", ["ring", "drect"]),
        ("ring+small=4K,0,direct", ["ring+small=4K,0", "direct"]),
        ("ring+repack=8,fp61,direct", ["ring+repack=8,fp61", "direct"]),
        ("ring,", ["ring", ""]),
    ],
)
def test_a_fault_stays_with_its_strategy(text, parts):
    """So that it is told as what it is."""
    assert parts == split_strategies(text)


def test_only_strategies_of_the_collective_follow_a_comma():
    """`one_shot` is none for a broadcast."""
    assert ["ring+small=4K", "one_shot"] == split_strategies("ring+small=4K,one_shot")
    assert ["ring+small=4K,one_shot"] == split_strategies("ring+small=4K,one_shot", "broadcast")
