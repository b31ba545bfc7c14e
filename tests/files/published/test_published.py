"""Published timings: what is shipped, and what a file may say."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.files.published import published_tables, read_published
from simreduce.topology import load_machine

TABLE = """
[[tables]]
name = "mine"
source = "a page"
topology = "dgx-h100"
collective = "all_reduce"
times = ["1024 9.5", "1048576 30"]
"""


def test_what_is_shipped_has_sources_and_rising_sizes():
    tables = published_tables()

    assert len({table.name for table in tables}) == len(tables) >= 90
    for table in tables:
        sizes = [size for size, _ in table.times]
        assert table.source
        assert sizes == sorted(set(sizes)), table.name


@pytest.mark.parametrize("topology", sorted({table.topology for table in published_tables()}))
def test_machines_of_published_tables_load(topology):
    assert load_machine(topology)


def test_some_tables_of_most_machines_are_held_out():
    held = {table.topology for table in published_tables() if table.held}

    assert 0.3 < sum(table.held for table in published_tables()) / len(published_tables()) < 0.6
    assert len(held) > 20


def test_a_table_is_read_in_si_units():
    (table,) = read_published("mine.toml", TABLE)

    assert [size for size, _ in table.times] == [1024, 1 << 20]
    assert [seconds for _, seconds in table.times] == pytest.approx([9.5e-6, 30e-6])
    assert (table.gpus, table.launcher, table.held, table.settings) == (None, "gpu", False, ())


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("1024 9.5", "1024", "must be bytes and microseconds"),
        ("1024 9.5", "0 9.5", "must be above 0"),
        ("all_reduce", "allreduce", "did you mean 'all_reduce'?"),
        ('source = "a page"', "", "source: missing"),
    ],
)
def test_faults_have_their_place(before, after, fault):
    with pytest.raises(InputError, match=r"mine.toml: tables\[0\]") as caught:
        read_published("mine.toml", TABLE.replace(before, after))
    assert fault in caught.value.problems[0]


def test_a_name_stands_once():
    with pytest.raises(InputError, match="there is a table 'mine' already"):
        read_published("mine.toml", TABLE + TABLE)
