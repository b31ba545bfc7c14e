"""Evaluating many items on several processes: in any order, in rounds, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from simreduce.errors import Deadlock, InputError, StrategyError, first_words
from simreduce.tune.bounds import Later, batches
from simreduce.workers import working

C = TypeVar("C")
T = TypeVar("T")


def evaluate_all(
    evaluate: Callable[[T], C | Deadlock | str | Later],
    items: Sequence[T],
    names: Sequence[str],
    workers: int,
    progress: Callable[[int, int], None],
    *,
    by_name: bool,
    again: Callable[[Sequence[C]], Callable[[int], T]] | None = None,
    seen: Callable[[C], None] = lambda _: None,
    order: Sequence[int] | None = None,
) -> tuple[list[C], tuple[tuple[str, str], ...], int]:
    """Candidates, the names of refused items with the reasons, and how many items are untried.

    Items given by name that the machine refuses raise one StrategyError; those that "all" stands
    for are refused. So are those that a fault cuts off for ever, unless it cuts off all of them,
    which raises Deadlock. Ctrl-C leaves out what is not simulated yet, if there is a candidate.

    Items whose outcome is `Later` are evaluated again in `batches` once all others are done:
    `again` gives, from the candidates until then, what makes the item of a place. `seen` gets
    each candidate as it comes. `order` has the places in the order of evaluation, which changes
    nothing else.
    """
    order = range(len(items)) if order is None else order
    outcomes: dict[int, C | Deadlock | str] = {}
    left: dict[int, Later] = {}

    def take(place: int, outcome: C | Deadlock | str | Later) -> None:
        if isinstance(outcome, Later):
            left[place] = outcome
            return
        outcomes[place] = outcome
        if not isinstance(outcome, Deadlock | str):
            seen(outcome)
        progress(len(outcomes), len(items))

    progress(0, len(items))
    try:
        with working(evaluate, min(workers, len(items))) as work_on:
            for number, outcome in work_on([items[place] for place in order]):
                take(order[number], outcome)
            for places in batches(left):
                assert again is not None  # noqa: S101 - else nothing is left for later
                found = [o for o in outcomes.values() if not isinstance(o, Deadlock | str)]
                for number, outcome in work_on(list(map(again(found), places))):
                    take(places[number], outcome)
    except KeyboardInterrupt:
        if all(isinstance(o, Deadlock | str) for o in outcomes.values()):
            raise
    pairs = [(names[place], outcomes[place]) for place in sorted(outcomes)]
    refused = [(name, o) for name, o in pairs if isinstance(o, str)]
    if refused and by_name:
        raise StrategyError([reason for _, reason in refused])
    stuck = [(name, o) for name, o in pairs if isinstance(o, Deadlock)]
    if stuck and len(stuck) + len(refused) == len(pairs):
        raise Deadlock(f"{stuck[0][0]}: {stuck[0][1]}")
    refused += [(name, f"{name}: {first_words(o)}") for name, o in stuck]
    candidates = [o for _, o in pairs if not isinstance(o, Deadlock | str)]
    return candidates, tuple(refused), len(items) - len(outcomes)


def attempt(name: str, simulate: Callable[[], C]) -> C | Deadlock | str:
    """What `simulate` returns, or why the machine refuses it or never finishes it."""
    try:
        return simulate()
    except Deadlock as error:
        return error
    except StrategyError as error:
        return "; ".join(error.problems)
    except InputError as error:  # GPUs that the plan joins and nothing else does
        return "; ".join(f"{name}: {problem}" for problem in error.problems)
