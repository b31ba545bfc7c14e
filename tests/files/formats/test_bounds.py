"""Hostile documents are refused before a parser takes minutes and gigabytes for them."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from simreduce.errors import InputError
from simreduce.files import MOST_DEPTH, MOST_TOML, parse_toml

HOSTILE = {
    "a key of 50,000 dots": "a" + ".a" * 50_000 + " = 1",
    "dots with blanks": "a" + " . a" * 25_000 + " = 1",
    "quoted parts": '"a"' + '."a"' * 25_000 + " = 1",
    "a header": "[a" + ".a" * 50_000 + "]",
    "a key of an inline table": "x = {a" + ".a" * 50_000 + " = 1}",
    "lists": "x = " + "[" * 100_000,
    "inline tables": "x = " + "{a=" * 30_000,
    "too long": "#" * (MOST_TOML + 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_is_refused_at_once(text):
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(InputError, match=r"a.toml: (line 1: nested too deeply|more than 4 MiB)"):
        parse_toml("a.toml", text, InputError)
    seconds, memory = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert seconds < 0.5
    assert memory < 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "x = '" + "a." * 500 + "'",
        'x = "' + 'a\\"[.' * 500 + '"',
        "x = '''\n" + "[[a.b\n" * 500 + "'''",
        'x = """\n' + '[{"a\\"""' * 500 + '"""',
        "x = 1 # " + "[." * 500,
        "\n".join(f"a.b.c.k{i} = [1.5, {{x.y = 2.5}}]" for i in range(200)),
        "a" + ".a" * (MOST_DEPTH - 1) + " = 1",
        "x = " + "[" * MOST_DEPTH + "]" * MOST_DEPTH,
    ],
)
def test_what_only_looks_deep_is_read(text):
    assert parse_toml("a.toml", text, InputError)


@pytest.mark.parametrize(
    "text", ['"""\\"' * 50_000, "'''" * 50_001, '"\n' * 50_000, "'\n" * 50_000, '"\\' * 50_000]
)
def test_quotes_that_never_end_are_scanned_once(text):
    begin = time.perf_counter()
    with pytest.raises(InputError):
        parse_toml("a.toml", text, InputError)

    assert time.perf_counter() - begin < 2
