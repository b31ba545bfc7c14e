"""What to paste into other systems for a strategy."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from simreduce import tables
from simreduce.export.targets import Exported
from simreduce.pages.values import Block, Code, Rows, Section
from simreduce.tables import Table

_LINES = 40
"""Longer files are written by a command."""

_TOLD = 3
"""Reasons that are shown at most."""


def paste_section(
    exports: Sequence[Exported], strategy: str, times: Mapping[str, str] = MappingProxyType({})
) -> Iterable[Section]:
    """What to paste, if that is known; `times` in words, by strategy."""
    if exports:
        yield Section("paste", "What to paste", tuple(_blocks(exports, strategy, times)))


def instead_words(each: Exported, times: Mapping[str, str]) -> str:
    """Says that a system has no setting for the strategy, and what is its fastest."""
    time = f", {times[each.instead]}" if each.instead in times else ""
    return f"{each.title} has no setting for it; its fastest here is {each.instead}{time}"


def _blocks(
    exports: Sequence[Exported], strategy: str, times: Mapping[str, str]
) -> Iterable[Block]:
    """The files of each system that has a setting for a strategy, and a folded table of those that
    have none.
    """
    for each in exports:
        about = f"{instead_words(each, times)}: " if each.instead else f"{each.title}: "
        for name, text in each.files.items():
            lines = text.count("\n")
            if lines <= _LINES:
                yield Code(text.rstrip("\n"), f"{about}{name}")
            else:
                yield Code(
                    _ask(each.name, each.instead or strategy), f"{about}{name}, {lines} lines, by"
                )
    without = [each for each in exports if each.reasons]
    if not without:
        return
    columns = tables.columns(
        "system|why it has no setting|nearest with one",
        left="system|why it has no setting|nearest with one",
    )
    rows = tuple((e.title, "; ".join(e.reasons[:_TOLD]), e.nearest or "none") for e in without)
    names = ", ".join(each.title for each in without)
    yield Rows(f"No setting for {strategy}: {names}", Table(columns, rows), folded=True)


def _ask(target: str, strategy: str) -> str:
    """The command that writes the files of a strategy, or of a method and its strategy."""
    method, _, algo = strategy.rpartition(", ")
    words = ["simreduce", "export", target, "SCENARIO", "--algo", algo, "--out", "DIR"]
    return shlex.join([*words, "--method", method] if method else words)
