"""Events of SimPy at exact times.

No other file uses SimPy's private queue or an event's private state.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush
from typing import Any

import simpy

NORMAL, LOW = 1, 2
"""Priorities: of one instant's events, SimPy's own are normal, and low ones come after them."""


def succeed_at(
    event: simpy.Event, at: float, priority: float = NORMAL, value: object = None
) -> None:
    """Let `event` succeed with `value` at exactly `at`.

    `env.schedule` takes a delay, and there need not be one that, added to the clock, gives `at` to
    the bit.
    """
    env = event.env
    event._ok, event._value = True, value  # noqa: SLF001 - as simpy.Timeout does
    entry: Any = (max(at, env.now), priority, next(env._eid), event)  # noqa: SLF001
    heappush(env._queue, entry)  # noqa: SLF001


class Moment(simpy.Event):
    """An event that succeeds at exactly `at`."""

    def __init__(self, env: simpy.Environment, at: float, priority: float = NORMAL) -> None:
        super().__init__(env)
        self.at = at
        succeed_at(self, at, priority)


def pending_events(env: simpy.Environment) -> Iterator[simpy.Event]:
    """The events that are scheduled."""
    return (event for *_, event in env._queue)  # noqa: SLF001
