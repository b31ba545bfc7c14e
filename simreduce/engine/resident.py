"""Plans that are submitted again and again."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from simreduce.computing.arrays import AnyInts
from simreduce.engine.submission import Submission
from simreduce.errors import InternalError


class Resident:
    """A plan that is submitted again and again, but not while it is under way.

    It keeps its place in the kernel's tables, so that to submit it costs little; and its number, so
    that in ties it comes where it came the first time.

    `start` puts it to its beginning, where its ops wait for so many things, and its INPUTs release.
    """

    def __init__(
        self,
        env: simpy.Environment,
        submission: Submission,
        waits: AnyInts,
        inputs: AnyInts,
        start: Callable[[Submission, AnyInts, AnyInts], None],
    ) -> None:
        self._env, self._submission, self._start = env, submission, start
        self._waits, self._inputs = waits, inputs
        self._submission.resident = True
        self._begun = False

    @property
    def under_way(self) -> bool:
        """Whether it has been submitted and is not done."""
        return self._begun and not self._submission.done.triggered

    def submit(self) -> simpy.Event:
        """Start now, with all INPUTs ready.

        The event succeeds, without a value, when the last op is done.
        """
        if self.under_way:
            raise InternalError("a resident plan was submitted while it was under way")
        self._begun = True
        self._submission.done = self._env.event()
        self._start(self._submission, self._waits, self._inputs)
        return self._submission.done
