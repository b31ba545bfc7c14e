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

    data = timeline_data(chart.drawn)
    rows = {group["name"]: group["rows"] for group in data["groups"]}
    drawn = [
        (item["group"], rows[item["group"]][item["row"]], len(item["begin"]))
        for item in data["items"]
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


def _drawn(found):
    """(row, text) of each bar by its number, and the number of what it waits for."""
    data = timeline_data(found)
    rows = {group["name"]: group["rows"] for group in data["groups"]}
    bars = [
        ((rows[item["group"]][item["row"]], data["texts"][text]), after)
        for item in data["items"]
        for text, after in zip(item["text"], item["after"], strict=True)
    ]
    return [name for name, _ in bars], [after for _, after in bars]


def test_bars_say_which_other_they_wait_for():
    """By its number, on whatever row it stands; nothing where that is no bar."""
    a = [(0.0, 1.0, "copy", "a", {"op": 1, "after": 0})]
    b = [(1.0, 2.0, "copy", "b", {"op": "x", "after": 1})]
    names, after = _drawn(
        timeline_of_threads([("m", "one", a), ("links", "wire", a), ("m", "two", b)])
    )

    assert [("one", "a"), ("two", "b"), ("wire", "a")] == names
    assert [-1, 0, -1] == after


def test_many_rows_with_the_same_times_are_one():
    """Its name counts them, and what waits for any of them waits for it."""
    alike = [("m", f"gpu{i}", [(0.0, 1.0, "copy", f"from {i}", {"op": i})]) for i in range(30)]
    last = ("m", "last", [(1.0, 2.0, "copy", "end", {"op": 99, "after": 17})])
    found = timeline_of_threads([*alike, last])
    names, after = _drawn(found)

    assert [("gpu0 and 29 alike", "from 0"), ("last", "end")] == names
    assert [-1, 0] == after
    assert 29 == found.alike
    assert "(29 are left out)" in timeline_chart(found, "words").words
    assert 0 == timeline_of_threads([*alike[:5], last]).alike
