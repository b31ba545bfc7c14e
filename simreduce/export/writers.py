"""The one writer of each format that other programs read: shell, environment, YAML, hostfiles.

A writer quotes every word that it is given. Only a `Raw` constant stands as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from simreduce.errors import InputError, escape, quote
from simreduce.files.formats import Name

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")
"""What YAML reads as the same text, but for `_WORDS`."""
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))
_UNQUOTED = re.compile(r"(?!#)[A-Za-z0-9_@%+=:,./^#-]+")
"""What a shell takes as it is."""
_MEANT = re.compile(r'([\\"$`])')
"""What a shell does not take as it is between double quotes."""
_LINE_END = re.compile(r"[\n\r\0]")
"""What no word has: it ends a line, or the text."""

Line = str | tuple[str, object]
"""A comment, or a variable and its value."""


class Raw(str):
    """A constant of a program that a writer does not quote."""

    __slots__ = ()


END = Raw("\\\n ")
"""The end of a line whose command goes on in the next."""


def comment(text: str) -> str:
    """A line of a comment."""
    return f"# {escape(text)}".replace("\n", "\\n") + "\n"


def script(comments: Iterable[str], *commands: Sequence[str]) -> str:
    """A shell script of commands, each a list of words."""
    lines = [" ".join(map(_shell_word, words)) + "\n" for words in commands]
    return "".join([*map(comment, comments), *lines])


def environment(lines: Iterable[Line]) -> str:
    """Lines `NAME=value` for a shell to source, and comments; a variable of None is left out."""
    return "".join(
        comment(line) if isinstance(line, str) else f"{line[0]}={_quoted(line[1])}\n"
        for line in lines
        if isinstance(line, str) or line[1] is not None
    )


def arguments(rows: Iterable[Sequence[object]], end: str = "", comments: Sequence[str] = ()) -> str:
    """Arguments of a command, in lines that end in `end`."""
    lines = [" ".join(map(_quoted, row)) for row in rows]
    return "".join([*map(comment, comments), f"{end}\n".join(lines), "\n"])


def yaml(comments: Iterable[str], *blocks: Raw) -> str:
    """A YAML document of a mapping's parts, such as those of `mapping` and `sequence`."""
    return "".join([*map(comment, comments), *blocks])


def mapping(table: Mapping[str, object], indent: int = 0) -> Raw:
    """Lines `key: value` of YAML, and tables below their keys."""
    parts = (
        f"\n{mapping(value, indent + 2)}" if isinstance(value, Mapping) else f" {_scalar(value)}\n"
        for value in table.values()
    )
    keys = (f"{' ' * indent}{_scalar(key)}:" for key in table)
    return Raw("".join(chain.from_iterable(zip(keys, parts, strict=True))))


def sequence(values: Iterable[object], indent: int) -> Raw:
    """Lines `- value` of YAML."""
    return Raw("".join(f"{' ' * indent}- {_scalar(value)}\n" for value in values))


def host_lines(rows: Iterable[tuple[str, Name, str]], comments: Sequence[str] = ()) -> str:
    """Lines with a host each, and what stands before and behind it."""
    lines = (f"{before}{host}{behind}\n" for before, host, behind in rows)
    return "".join([*map(comment, comments), *lines])


def _shell_word(word: str) -> str:
    return word if isinstance(word, Raw) else shlex.quote(_one_line(word))


def _quoted(value: object) -> str:
    """A word as a shell reads it, between double quotes unless it matches `_UNQUOTED`."""
    text = _one_line(str(value))
    meant = _MEANT.sub(r"\\\1", text)
    return text if _UNQUOTED.fullmatch(text) else f'"{meant}"'


def _one_line(text: str) -> str:
    if _LINE_END.search(text):
        raise InputError(f"{quote(text)} has a line break, which no word of a file may have")
    return text


def _scalar(value: object) -> str:
    """Plain words as they are, other text in quotes; true, false, null and integers as in JSON.

    Floats are those of YAML 1.1, which has a point in each: `1.0e-05`, `.inf`, `.nan`.
    """
    if isinstance(value, float):
        text = float.__repr__(value).replace("inf", ".inf").replace("nan", ".nan")
        return text if "." in text else text.replace("e", ".0e")
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return escape(json.dumps(value, ensure_ascii=False))
