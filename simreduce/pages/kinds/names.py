"""What the names of strategies mean, for readers who never typed one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from simreduce import packing, tables
from simreduce.algorithms import ALGORITHMS
from simreduce.errors import InputError
from simreduce.pages.values import Rows
from simreduce.strategy import parse_strategy
from simreduce.tables import Table


def _meanings(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a strategy's name, and what each means; of a step, the method stands before."""
    try:
        strategy = parse_strategy(text.rpartition(", ")[2])
    except InputError:  # by a plugin that is not loaded here
        return
    for each in strategy.ranges:
        with suppress(KeyError):  # rules of TensorFlow are no algorithms
            yield each.algorithm, ALGORITHMS[each.algorithm].summary
    packer = strategy.packing.partition("=")[0]
    if packer in packing.SUMMARIES:
        yield f"+{packer}", packing.SUMMARIES[packer]
    if strategy.chunk:
        yield "+chunk", "a pipeline, in chunks of so many bytes"


def meaning(strategy: str) -> str:
    """What a strategy does, as a sentence; "" where its parts are not known."""
    words = "; ".join(meaning for _, meaning in _meanings(strategy))
    return f"{words[0].upper()}{words[1:]}." if words else ""


def names_block(strategies: Iterable[str]) -> Iterator[Rows]:
    """A folded table of the parts of these names."""
    found = dict(part for text in strategies for part in _meanings(text))
    if found:
        columns = tables.columns("part of a name|what it does", left="part of a name|what it does")
        yield Rows("What these names mean", Table(columns, tuple(found.items())), folded=True)
