"""`--algo A,B`: strategies as all commands take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from simreduce.cli.options import F, gather
from simreduce.errors import InputError
from simreduce.strategy import ALL, Strategy, parse_strategy, split_strategies


def algo_option(what: str) -> Callable[[F], F]:
    """`--algo`, of which the help says what it is."""
    return click.option("--algo", multiple=True, metavar="A[,B...]", help=f"{what}; may be repeated.")


def strategy_texts(given: Iterable[str], collective: str = "all_reduce") -> list[str]:
    """Every strategy that was given, as a text of its own."""
    return [part for text in given for part in split_strategies(text, collective)]


def read_strategies(
    given: Iterable[str], every: Sequence[str], collective: str = "all_reduce"
) -> list[tuple[Strategy, bool]]:
    """The strategies that were given, and whether each was asked for by name; `all` stands for the names of `every` one."""
    found: list[tuple[Strategy, bool]] = []
    problems: list[str] = []
    for text in strategy_texts(given, collective):
        if text == ALL:
            found += [(parse_strategy(name, collective), False) for name in every]
        elif strategy := gather(problems, parse_strategy, text, collective):
            found.append((strategy, True))
    if problems:
        raise InputError(problems)
    return found


def read_strategy(text: str, collective: str = "all_reduce") -> Strategy:
    """The one strategy that was given."""
    if text == ALL or len(split_strategies(text, collective)) > 1:
        raise InputError(f"--algo {text}: one strategy at a time")
    return parse_strategy(text, collective)
