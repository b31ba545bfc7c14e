"""`--algo A,B`: strategies as all commands take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from simreduce.cli.options import F, gather
from simreduce.errors import InputError, shown
from simreduce.strategy import ALL, Strategy, misplaced, parse_strategy, split_strategies


def algo_option(what: str) -> Callable[[F], F]:
    """`--algo`, of which the help says what it is."""
    return click.option(
        "--algo", multiple=True, metavar="A[,B...]", help=f"{what}; may be repeated."
    )


def strategy_texts(
    problems: list[str], given: Iterable[str], collective: str = "all_reduce"
) -> list[str]:
    """Every strategy that was given, as a text of its own; empty ones go to `problems`."""
    found: list[str] = []
    for text in given:
        parts = [part.strip() for part in split_strategies(text, collective)]
        if "" in parts:
            problems.append(f"--algo: an empty strategy in {shown(text)}")
        found += filter(None, parts)
    return found


def read_strategies(
    given: Iterable[str], every: Sequence[str], collective: str = "all_reduce"
) -> list[tuple[Strategy, bool]]:
    """The strategies that were given, and whether each was asked for by name; `all` stands for the
    names of `every` one.
    """
    found: list[tuple[Strategy, bool]] = []
    problems: list[str] = []
    texts = strategy_texts(problems, given, collective)
    problems += [f"--algo: {problem}" for problem in misplaced(texts)]
    for text in texts:
        if text == ALL:
            found += [(parse_strategy(name, collective), False) for name in every]
        elif strategy := gather(problems, parse_strategy, text, collective):
            found.append((strategy, True))
    if problems:
        raise InputError(problems)
    return found


def read_strategy(text: str, collective: str = "all_reduce") -> Strategy:
    """The one strategy that was given."""
    problems: list[str] = []
    texts = strategy_texts(problems, [text], collective)
    if ALL in texts or len(texts) > 1:
        problems.append(f"--algo {text}: one strategy at a time")
    if problems:
        raise InputError(problems)
    return parse_strategy(text, collective)
