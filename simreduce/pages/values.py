"""What a page shows, as values; `html` writes them. All texts are plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from simreduce.pictures import Drawing
from simreduce.tables import Table


@dataclass(frozen=True, slots=True)
class Fact:
    """A question, its answer in a few words, and what to add in a sentence."""

    question: str
    answer: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy, such as a command; `about` says what it does."""

    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Rows:
    """A table. One that is `folded` opens on request."""

    caption: str
    table: Table
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing; `words` say what is to be seen."""

    drawing: Drawing
    words: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that the page's script draws from `data`, which is made of JSON types.

    `words` say what is to be seen, and `table` has the figures. `height` is in pixels.
    """

    kind: Literal["bars", "curves", "points", "stack", "timeline"]
    words: str
    data: Mapping[str, Any]
    table: Table
    height: int = 320


Block: TypeAlias = Paragraph | Code | Rows | Picture | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page. `key` is its anchor: letters and hyphens."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A report: the `answer` in one sentence, how `sure` it is, facts, and sections with why."""

    title: str
    about: str
    answer: str
    sure: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
