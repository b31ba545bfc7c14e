"""The one reader of JSON from outside: what it refuses, at once and in words."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import InputError, TopologyError
from simreduce.files import MOST_DEPTH
from simreduce.files.formats.syntax import read_json
from tests.thorough import examples

DEEP = "nested too deeply, more than 64 levels"


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff\xff", ""),
        ("[NaN]", "NaN is no number of JSON"),
        ("[-Infinity]", "-Infinity is no number of JSON"),
        ("1e999", "1e999 is no number of JSON"),
        ("9" * 9000, f"{'9' * 1000} is no number of JSON"),
        ('{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}', "the key 'c' stands twice in an object"),
        (nested(MOST_DEPTH + 1), DEEP),
        (nested(100_000), DEEP),
        ('{"a":' * 900 + "1" + "}" * 900, DEEP),
        ("[" * 100_000, DEEP),
        ("{" + ", ".join(f'"{i}": 1' for i in range(40_000)) + ', "7": 2}', "the key '7' stands"),
        ("1" + " " * 10, "more than 0 MiB of JSON"),
    ],
    ids=range(14),
)  # fmt: skip
def test_what_is_refused(text: str | bytes, reason: str) -> None:
    begin = time.process_time()
    with pytest.raises(TopologyError) as error:
        read_json(text, "f: no JSON", TopologyError, most=10 if "MiB" in reason else 1 << 20)
    assert str(error.value).startswith(f"f: no JSON: {reason}")
    assert time.process_time() - begin < 0.5


def test_a_document_as_deep_as_allowed() -> None:
    text = nested(MOST_DEPTH)
    assert read_json(text, "f") == json.loads(text)


def test_keys_that_stand_twice_where_programs_write_them() -> None:
    assert read_json(b'{"a": 1, "a": 2}', "f", twice=True) == {"a": 2}
    with pytest.raises(InputError, match="f: nested too deeply"):
        read_json(nested(1000), "f", twice=True)


def test_numbers_that_are_not_finite_where_programs_write_them() -> None:
    found = read_json("[NaN, -Infinity, 1e999, 1]", "f", finite=False)
    assert repr(found) == "[nan, -inf, inf, 1]"
    with pytest.raises(InputError, match=r"f: 9+ is no number of JSON"):
        read_json("9" * 9000, "f", finite=False)


@settings(max_examples=examples(500), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=5)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)  # fmt: skip
def test_any_other_document_is_read(value: object) -> None:
    assert read_json(json.dumps(value), "f") == value
