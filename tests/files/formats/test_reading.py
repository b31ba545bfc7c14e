"""Declared tables: what is read, every fault with its place, and what is said of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import InputError, InternalError
from simreduce.files import parse_toml
from simreduce.files.formats import (
    BANDWIDTH,
    DURATION,
    FLAG,
    LINE,
    TEXT,
    Field,
    Format,
    ListOf,
    MapOf,
    TableOf,
    TablesOf,
    choice,
    json_schema,
    number,
    whole,
)
from simreduce.files.formats.syntax import Faults, toml_text
from tests.reference import reference

WIRE = Format(
    "links.CLASS",
    "A class of links.",
    Field("bandwidth", BANDWIDTH, "Bytes a second in each direction.", required=True),
    Field("lanes", whole(1, 8), "How many in parallel.", 1),
)
FORM = Format(
    "machine",
    "A machine of a test.",
    Field("title", LINE, "The name in reports."),
    Field("kind", choice(("ring", "full"), "kind"), "The shape.", "ring"),
    Field("wait", DURATION, "Time before the start.", 0.0, default_words="none"),
    Field("part", number(0, 1), "Part of it."),
    Field("exact", FLAG, "Whether to round.", False),
    Field("sizes", ListOf(whole(1, 9), 1), "Sizes."),
    Field("links", MapOf(TableOf(WIRE), key="CLASS"), "Figures of links."),
    Field("costs", MapOf(DURATION, ("copy", "add")), "Costs of operations."),
    Field("steps", TablesOf(WIRE), "Steps."),
    Field("notes", TEXT, "Free text."),
)


def read(table: object) -> tuple[dict, list[str]]:
    faults = Faults("a.toml")
    values = FORM.read(table, faults)
    return values, faults.problems


def test_a_table_is_read_in_si_units():
    values, problems = read(
        {
            "title": "x",
            "wait": "2 ms",
            "part": 1,
            "sizes": [1, 2],
            "links": {"qpi": {"bandwidth": "1 GB/s"}},
            "costs": {"copy": "1 us"},
            "steps": [{"bandwidth": "8 Gbit/s", "lanes": 2}],
            "notes": "two\nlines",
        }
    )

    assert problems == []
    assert values == {
        "title": "x",
        "kind": "ring",
        "wait": 2e-3,
        "part": 1.0,
        "exact": False,
        "sizes": [1, 2],
        "links": {"qpi": {"bandwidth": 1e9, "lanes": 1}},
        "costs": {"copy": 1e-6},
        "steps": [{"bandwidth": 1e9, "lanes": 2}],
        "notes": "two\nlines",
    }
    assert values.given == set(values) - {"kind", "exact"}


def test_every_fault_is_found_in_one_round():
    values, problems = read(
        {
            "titel": 1,
            "title": "a\x1b[31m",
            "kind": "rin",
            "wait": "2 GB",
            "part": math.inf,
            "exact": 1,
            "sizes": [0, "x"],
            "links": {"qpi": {"lanes": 9}, "upi": 3},
            "costs": {"cpoy": "1 us", "add": 3},
            "steps": [3],
            "notes": "\u202e",
        }
    )

    assert problems == [
        "a.toml: titel: unknown key (did you mean 'title'?)",
        "a.toml: title: has a control character, which could hide what it says: 'a\\x1b[31m'",
        "a.toml: kind: unknown kind 'rin' (did you mean 'ring'?)",
        (
            "a.toml: wait: '2 GB': unknown unit 'GB' for a time; "
            "write for example '1.5 us' or '700 ns'"
        ),
        "a.toml: part: must be a number from 0 to 1, got inf",
        "a.toml: exact: must be true or false, got 1",
        "a.toml: sizes[0]: must be a whole number from 1 to 9, got 0",
        "a.toml: sizes[1]: must be a whole number from 1 to 9, got 'x'",
        "a.toml: links.qpi.bandwidth: missing; must be a bandwidth between 1 kB/s and 1 PB/s",
        "a.toml: links.qpi.lanes: must be a whole number from 1 to 8, got 9",
        "a.toml: links.upi: must be a table, got 3",
        "a.toml: costs.cpoy: unknown key (did you mean 'copy'?)",
        (
            "a.toml: costs.add: 3 has no unit; "
            "write a time as text, for example '1.5 us' or '700 ns'"
        ),
        "a.toml: steps: must be [[links.CLASS]] tables with bandwidth, lanes, got [3]",
        "a.toml: notes: has a control character, which could hide what it says: '\\u202e'",
    ]
    assert (values["kind"], values["sizes"], values["links"]["qpi"]["lanes"]) == ("ring", [], 1)
    assert {"title", "kind"} <= values.faulty


def test_a_key_that_hides_its_name_is_escaped():
    assert read({"\u202etitle": 1})[1] == [
        "a.toml: \\u202etitle: unknown key (did you mean 'title'?)"
    ]


def test_a_place_is_the_file_or_the_option_that_gave_the_key():
    faults = Faults("a.toml", {"links.qpi": "b.toml"}, {"runtime": "--runtime"})
    faults.add("links.qpi.lanes", "one")
    faults.add("links.upi", "two")
    faults.add("runtime", "three")
    faults.add("runtime[2]", "four")

    assert faults.problems == [
        "b.toml: links.qpi.lanes: one",
        "a.toml: links.upi: two",
        "--runtime: three",
        "--runtime: four",
    ]


def test_no_more_than_a_thousand_faults_are_kept():
    faults = Faults("a.toml")
    for _ in range(2000):
        faults.add("x", "wrong")

    assert len(faults.problems) == 1001
    assert faults.problems[-1] == "a.toml: there are more faults than these 1000"


def test_what_refuses_is_noted_and_the_reader_goes_on():
    faults = Faults()

    def refuse() -> int:
        raise InputError(["one", "two"])

    assert faults.attempt("-b", refuse) is None
    assert faults.attempt("-e", int, "3") == 3
    with pytest.raises(InputError, match="-b: one\n-b: two"):
        faults.raise_any()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["1 us", "1 GB/s", "ring"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "lanes", "bandwidth", "copy"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*FORM.keys, "x"]), values))
def test_whatever_a_table_holds_is_read_or_a_fault(table):
    found, problems = read(table)

    assert set(found) == set(FORM.keys)
    assert all(problem.startswith("a.toml: ") and problem.isprintable() for problem in problems)


def test_the_schema_says_what_the_reader_does():
    schema = json_schema(FORM)
    properties = schema["properties"]

    assert schema["$schema"].endswith("draft/2020-12/schema")
    assert schema["additionalProperties"] is False
    assert properties["kind"] == {
        "enum": ["ring", "full"],
        "description": "The shape.",
        "default": "ring",
    }
    wire = properties["links"]["additionalProperties"]
    assert wire["required"] == ["bandwidth"]
    assert (wire["properties"]["lanes"]["minimum"], wire["properties"]["lanes"]["maximum"]) == (
        1,
        8,
    )
    assert wire["properties"]["bandwidth"]["examples"] == ["25 GB/s", "200 Gbit/s"]
    assert set(properties["costs"]["properties"]) == {"copy", "add"}
    assert properties["steps"]["items"] == wire
    assert properties["sizes"]["items"]["maximum"] == 9


def test_the_reference_has_a_row_for_every_key():
    text = reference(FORM)

    assert "## machine" in text
    assert "### `[links.CLASS]`" in text
    assert "### `[[steps]]`" in text
    assert "| `kind` | one of ring, full | `ring` | The shape. |" in text
    assert "| `wait` | a time | none | Time before the start. |" in text
    assert "| `bandwidth` | a bandwidth between 1 kB/s and 1 PB/s | required |" in text


documents = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), documents),
    st.lists(st.text(st.characters(exclude_categories=["C"]))),
)
def test_what_is_written_reads_back(document, comments):
    comments = [comment for comment in comments if comment.isprintable()]

    assert document == parse_toml("x", toml_text(document, comments), InputError)


def test_toml_leaves_out_what_is_none():
    document = {"a": None, "b": {"c": None, "d": 1}, "e": [{"f": {"g": None, "h": 2}}]}
    assert parse_toml("x", toml_text(document), InputError) == {
        "b": {"d": 1},
        "e": [{"f": {"h": 2}}],
    }
    with pytest.raises(InternalError, match="TOML cannot say None"):
        toml_text({"a": [None]})
