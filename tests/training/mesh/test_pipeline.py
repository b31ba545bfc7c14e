"""Schedules against grids that were made by hand, and files of schedules."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import Deadlock, InputError
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.pipeline import (
    NAMES,
    Schedule,
    grid,
    load_schedule,
    parse_schedule,
    why_not,
    write_schedule,
)
from simreduce.training.mesh.write import write_step
from simreduce.training.recorded import replay_compute
from tests.thorough import examples
from tests.training.mesh.jobs import Equal, Free, job

_ONE_BY_ONE = """
0F0 0F1 .   .   0B0 0B0 0F2 0B1 0B1 .   0B2 0B2
.   1F0 1B0 1B0 1F1 1B1 1B1 1F2 1B2 1B2
"""
_GPIPE = """
0F0 0F1 0F2 .   .   .   0B0 0B0 0B1 0B1 0B2 0B2
.   1F0 1F1 1F2 1B0 1B0 1B1 1B1 1B2 1B2
"""
_INTERLEAVED = """
0F0 0F1 2F0 2F1 .   .   2B0 2B0 .   2B1 2B1 0B0 0B0 0B1 0B1
.   1F0 1F1 3F0 3B0 3B0 3F1 3B1 3B1 1B0 1B0 1B1 1B1
"""
_ZERO_BUBBLE = """
0F0 0F1 .   0I0 0W0 0F2 0I1 0W1 0I2 0W2
.   1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
"""


def _file(schedule):
    return "\n".join(",".join(map(str, row)) for row in schedule.rows) + "\n"


@pytest.mark.parametrize(
    ("name", "virtual", "micros", "by_hand"),
    [
        ("1f1b", 1, 3, _ONE_BY_ONE),
        ("gpipe", 1, 3, _GPIPE),
        ("interleaved", 2, 2, _INTERLEAVED),
        ("zero_bubble", 1, 3, _ZERO_BUBBLE),
    ],
)
def test_grids_by_hand(name, virtual, micros, by_hand):
    """Two ranks; a forward pass takes a tick, a whole backward pass two."""
    rows = [["" if cell == "." else cell for cell in line.split()] for line in by_hand.split("\n")]

    assert rows[1:-1] == grid(write_schedule(name, 2, virtual, micros))


_ASKED = st.tuples(
    st.sampled_from(NAMES), st.integers(1, 5), st.integers(1, 4), st.integers(1, 14)
).filter(lambda asked: not [*why_not(*asked)])


@settings(max_examples=examples(150), deadline=None)
@given(asked=_ASKED)
def test_every_schedule_ends_and_passes_every_micro_batch_once(asked):
    """On every stage: forward once, backward whole or in its two parts."""
    name, p, v, m = asked
    schedule = write_schedule(name, p, v, m)
    parts = Counter(part[:3] for row in schedule.rows for each in row for part in each.parts)
    for stage in range(p * v):
        for micro in range(m):
            whole, *halves = (parts.pop((stage, kind, micro), 0) for kind in "BIW")
            assert 1 == parts.pop((stage, "F", micro))
            assert (whole, *halves) in ((1, 0, 0), (0, 1, 1))
    assert not parts
    assert len(grid(schedule)) == p
    assert sorted(schedule.home) == list(range(p * v))


@settings(max_examples=examples(60), deadline=None)
@given(asked=_ASKED)
def test_a_schedule_reads_what_it_writes(asked):
    """As the lines of a file, passes that overlap among them."""
    schedule = write_schedule(*asked)
    again = parse_schedule(schedule.name, _file(schedule))

    assert schedule == again


def _seconds(name: str, p: int, v: int, m: int, **more: object) -> float:
    """Of a step whose passes take 1 and 2 seconds on each stage, and whose sends take none."""
    text = f"transformer:layers={p * v},hidden=8,heads=1,vocab=8,seq=8"
    work = job(Mesh(pp=p), text, micros=m, virtual=v, schedule=name, **more)
    costs = Free(work.mesh)
    step = write_step(work, write_schedule(name, p, v, m), Equal(work, costs), {})
    return max(each.end for each in replay_compute(step) if each.node.name != "update")


@settings(max_examples=examples(80), deadline=None)
@given(asked=_ASKED, overlap=st.sampled_from([(), ("p2p",)]))
def test_a_step_takes_as_long_as_its_grid(asked, overlap):
    """Where sends take no time: two ways to run a schedule, neither of which gets stuck, in
    whichever order a rank sends to its neighbour and needs what comes from there.
    """
    rows = grid(write_schedule(*asked))

    assert max(map(len, rows)) == pytest.approx(_seconds(*asked, overlap=frozenset(overlap)))


def test_a_rank_may_need_micro_batches_in_another_order_than_they_come():
    """As in a file: it receives both before the first that it computes."""
    text = "0F1,0F0,0B0,0B1\n1F0,1F1,1B1,1B0\n"
    schedule = parse_schedule("mine", text)
    work = job(Mesh(pp=2), micros=2, schedule="mine", placed=(0, 1))
    step = write_step(work, schedule, Equal(work, Free(work.mesh)), {})
    ends = [each.end for each in replay_compute(step) if each.node.name != "update"]

    assert max(map(len, grid(schedule))) == pytest.approx(max(ends))


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (2, 5), (4, 4), (4, 12), (7, 9)])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_the_bubble_is_that_of_theory(name, p, m):
    """(p - 1) / m of the passes (Narayanan et al. 2021, arXiv 2104.04473, section 2.2)."""
    assert _seconds(name, p, 1, m) == pytest.approx(3 * m * (1 + (p - 1) / m), rel=1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (2, 3, 6), (4, 2, 8), (4, 4, 4), (3, 5, 6)])
def test_interleaved_stages_divide_the_bubble(p, v, m):
    """(p - 1) / (m v) of the passes (the same, section 2.2)."""
    assert _seconds("interleaved", p, v, m) == pytest.approx(
        3 * m * v * (1 + (p - 1) / (m * v)), rel=1e-9
    )


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (4, 8), (4, 12)])
def test_backward_for_weights_fills_two_thirds_of_the_bubble(p, m):
    """(p - 1) (F + I - W) (Qi et al. 2023, arXiv 2401.10241, table 1, ZB-H1), all three equal."""
    assert _seconds("zero_bubble", p, 1, m) == pytest.approx(3 * m + (p - 1), rel=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12)])
def test_stages_in_a_v_have_no_bubble_but_warm_up(p, m):
    """ZB-V: the first rank computes without a gap from its first pass to its last."""
    rows = grid(write_schedule("zbv", p, 2, m))

    assert 6 * m == len(rows[0]) == sum(map(bool, rows[0]))


def test_ranks_that_wait_for_each_other_print_the_grid():
    """What each did until then, and which action it cannot begin."""
    stuck = parse_schedule("mine", "0F0,0B1,0F1,0B0\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(Deadlock) as caught:
        grid(stuck)

    assert (
        "mine: its ranks wait for each other for ever:\n"
        "  rank 0: 0F0 | waits for its turn at 0B1\n"
        "  rank 1: . 1F0 | waits for its turn at 1F1"
    ) == str(caught.value)


def test_a_file_that_cannot_end_is_refused_with_the_grid(tmp_path):
    """Before anything is simulated."""
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0B1,0F1,0B0\n1F0,1F1,1B0,1B1\n", "utf-8")
    with pytest.raises(InputError, match=r"rank 1: \. 1F0 \| waits for its turn at 1F1"):
        load_schedule(str(path), 2, 1, 2)


def test_actions_that_follow_from_others_are_left_out():
    """As PyTorch's runtime writes them, and cells without an action, which are bubbles."""
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n"

    assert [["0F0", "0B0"], ["1F0", "1B0"]] == [
        [str(each) for each in row] for row in parse_schedule("x", text).rows
    ]


_TAKES = "it takes B once, or I and W once each"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["mine: has no action"]),
        (
            "0F0,0Q0,0B0\n1F0,(1F1;9)OVERLAP_F_B\n",
            [
                "mine: line 1: '0Q0' is no action such as 0F3, 0B3, 0I3 or 0W3",
                "mine: line 2: '(1F1;9)OVERLAP_F_B' is no action such as 0F3, 0B3, 0I3 or 0W3",
            ],
        ),
        (
            "0F0,0B0\n1F0,0F1,0B1\n",
            [
                "mine: stage 0 is in line 1 and line 2; it takes one",
                "mine: 1B0 occurs 0 times, its I 0 times and its W 0 times; " + _TAKES,
                "mine: 1F1 occurs 0 times; it takes one",
                "mine: 1B1 occurs 0 times, its I 0 times and its W 0 times; " + _TAKES,
            ],
        ),
        (
            "0F0,0F0,0B0,0W0\n",
            [
                "mine: 0F0 occurs 2 times; it takes one",
                "mine: 0B0 occurs 1 times, its I 0 times and its W 1 times; " + _TAKES,
            ],
        ),
        (
            "1F0,1B0\n",
            [
                "mine: stage 0 is in no line; it takes one",
                "mine: 0F0 occurs 0 times; it takes one",
                "mine: 0B0 occurs 0 times, its I 0 times and its W 0 times; " + _TAKES,
            ],
        ),
        ("0F9999999,0B0\n9999999F0\n", ["mine: more than 4194304 passes"]),
    ],
)
def test_every_fault_of_a_file(text, faults):
    """With the line, or the pass."""
    with pytest.raises(InputError) as caught:
        parse_schedule("mine", text)

    assert faults == list(caught.value.problems)


def test_a_file_of_another_mesh_is_refused(tmp_path):
    """With both counts."""
    path = tmp_path / "mine.csv"
    path.write_text(_file(write_schedule("1f1b", 2, 1, 4)), "utf-8")
    with pytest.raises(InputError, match=r"has 2 ranks, 2 stages and 4 micro.*mesh has 4, 4 and 8"):
        load_schedule(str(path), 4, 1, 8)

    found = load_schedule(str(path), 2, 1, 4)
    assert isinstance(found, Schedule)
    assert write_schedule("1f1b", 2, 1, 4).rows == found.rows


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (("1f1b", 4, 2, 8), "1f1b has one stage on a GPU; interleaved and zero_bubble take"),
        (("zbv", 4, 1, 8), "zbv has two stages on a GPU: virtual = 2"),
        (("interleaved", 4, 1, 8), "interleaved needs two stages on a GPU or more: virtual = 2"),
        (("interleaved", 4, 2, 9), "9 micro batches are no whole rounds of 4 ranks; 8 or 12 are"),
        (("dualpipe", 4, 2, 7), "dualpipe needs as many micro batches as stages: 8 or more, not 7"),
    ],
)
def test_schedules_that_cannot_be(asked, fault):
    """With what can."""
    with pytest.raises(InputError, match=fault):
        write_schedule(*asked)


def test_an_unknown_schedule_has_a_nearest():
    """Of the names; or a file."""
    with pytest.raises(InputError, match=r"no schedule 'interleavd' \(did you mean 'interleaved'"):
        load_schedule("interleavd", 2, 1, 4)
