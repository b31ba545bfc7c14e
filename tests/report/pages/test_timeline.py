"""Timelines of pages: bars of the threads of traces, joined where there are too many."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings, strategies as st

from simreduce.report.blocks import timeline_chart, timeline_data, timeline_of_threads
from tests.report.pages import documents
from tests.thorough import examples

PATH = "critical path"


def _threads(slices):
    """One thread for each list of (begin, end), in seconds."""
    for number, row in enumerate(slices, 1):
        found = [(begin, end, "copy", "x", {"op": op}) for op, (begin, end) in enumerate(row)]
        yield "machine 0", f"gpu{number}", found


rows = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40),
    min_size=1,
    max_size=4,
)


def _pack(gaps):
    found, now = [], 0
    for gap, length in gaps:
        found.append((now + gap, now + gap + length))
        now += gap + length
    return found


@given(rows, st.integers(8, 40))
@settings(max_examples=examples(40))
def test_joined_bars_keep_order_and_cover_what_they_stand_for(slices, most):
    """No more bars than asked for; every slice lies within a bar; bars of a row do not overlap."""
    slices = [_pack(row) for row in slices]
    whole = timeline_of_threads(_threads(slices), most=math.inf)
    found = timeline_of_threads(_threads(slices), most=most)

    assert sum(map(len, slices)) == len(whole.bars)
    assert len(found.bars) <= max(most, len(slices))
    assert found.whole == whole.whole
    for tid, row in enumerate(slices, 1):
        mine = [bar for bar in found.bars if bar.row == f"gpu{tid}"]
        assert all(a.end <= b.begin for a, b in itertools.pairwise(mine))
        assert all(any(b.begin <= s * 1e6 and e * 1e6 <= b.end for b in mine) for s, e in row)


def test_the_critical_path_comes_first_and_is_joined_only_where_it_is_too_long_itself():
    """Its ops are a group of their own, complete while they are half of the limit at most."""
    recording, setup = documents.record(size="bytes:4M")
    path = recording.result.path.op.tolist()
    threads = documents.threads(recording, setup)

    def on_path(most):
        found = timeline_of_threads(threads, path, most=most)
        first = [bar for bar in found.bars if bar.group == PATH]
        assert found.bars[: len(first)] == tuple(first)
        assert {bar.kind for bar in first} == {PATH}
        assert math.isclose(max(bar.end for bar in first), recording.result.seconds * 1e6)
        return len(first)

    whole = on_path(10**6)
    assert on_path(2 * whole) == whole
    assert on_path(whole) < whole


def test_the_table_counts_the_bars_of_the_chart():
    """So that a reader without the chart has the same figures."""
    recording, setup = documents.record()
    found = timeline_of_threads(documents.threads(recording, setup))
    chart = timeline_chart(found, "words")

    drawn = [
        (group["name"], group["rows"][item["row"]], len(item["begin"]))
        for group in timeline_data(chart.drawn)["groups"]
        for item in group["items"]
    ]
    counted = {(row[0], row[1]): int(row[2]) for row in chart.table.rows}
    assert sum(counted.values()) == sum(count for *_, count in drawn) == len(found.bars)


def test_the_table_says_when_the_bars_of_a_row_begin_and_end_and_how_busy_it_is():
    """In microseconds: two rows with gaps, in a whole of 10 us."""
    us = 1e-6
    first, second = [(us, 2 * us), (4 * us, 5 * us), (7 * us, 10 * us)], [(2 * us, 9 * us)]
    found = timeline_of_threads(_threads([first, second]))
    rows = timeline_chart(found, "words").table.rows

    assert [("1.00", "10.00", "50%"), ("2.00", "9.00", "70%")] == [row[3:] for row in rows]
