"""`--algo A,B`: strategies as all commands take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from simreduce.algorithms import warn_of_unloaded
from simreduce.cli.completion import strategies
from simreduce.cli.options import F
from simreduce.errors import quote
from simreduce.formats import Faults
from simreduce.strategy import ALL, Strategy, misplaced, parse_strategy, split_strategies


def algo_option(what: str) -> Callable[[F], F]:
    """`--algo`; `what` says what is done with them."""
    return click.option(
        "--algo",
        multiple=True,
        shell_complete=strategies,
        metavar="A[,B...]",
        help=f"{what} Repeatable.",
    )


def strategy_texts(
    faults: Faults, given: Iterable[str], collective: str = "all_reduce"
) -> list[str]:
    """Every strategy that was given, as a text of its own; notes empty ones."""
    found: list[str] = []
    for text in given:
        parts = [part.strip() for part in split_strategies(text, collective)]
        if "" in parts:
            faults.add("--algo", f"an empty strategy in {quote(text)}")
        found += filter(None, parts)
    return found


def read_strategies(
    given: Iterable[str], every: Sequence[str], collective: str = "all_reduce"
) -> list[tuple[Strategy, bool]]:
    """The strategies that were given, and whether each was given by name; `all` stands for the
    names of `every` one.
    """
    found: list[tuple[Strategy, bool]] = []
    faults = Faults()
    texts = strategy_texts(faults, given, collective)
    for problem in misplaced(texts):
        faults.add("--algo", problem)
    for text in texts:
        if text == ALL:
            warn_of_unloaded()
            found += [(parse_strategy(name, collective), False) for name in every]
        elif strategy := faults.attempt("", parse_strategy, text, collective):
            found.append((strategy, True))
    faults.raise_any()
    return found


def read_strategy(text: str, collective: str = "all_reduce") -> Strategy:
    """The one strategy that was given."""
    faults = Faults()
    texts = strategy_texts(faults, [text], collective)
    if ALL in texts or len(texts) > 1:
        faults.add(f"--algo {text}", "one strategy at a time")
    faults.raise_any()
    return parse_strategy(text, collective)
