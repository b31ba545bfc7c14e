"""A process that answers one view at a time: `python -m simreduce.app.serve.worker`.

It reads lines of JSON from descriptor 0 (its settings, then questions), and writes messages to
descriptor 1. A line `"stop"` ends the work at hand at its next step. It ends with the process that
started it, whatever that one dies of, and may use so much memory and no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
import traceback
from typing import Any, TextIO

from simreduce.app.serve.answer import Sayer, answer
from simreduce.app.serve.view import read_view
from simreduce.computing.workers import end_with_parent, limit_memory
from simreduce.errors import InputError, SimreduceError
from simreduce.study.tune.plan_cache import PlanCache

_OFTEN = 0.1
"""Seconds between two messages on how far the work is."""
_WARM = "machine=dgx1v&size=1MiB&algo=nccl,ring,trees"


class _LeftError(Exception):
    """Nobody waits for the answer any more."""


class _Desk:
    """Reads questions and orders, writes messages."""

    def __init__(self, lines: TextIO, out: TextIO) -> None:
        self.questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lines, self._out, self._told = lines, out, 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Take lines as they come, also while an answer is computed."""
        for line in self._lines:
            found = json.loads(line)
            if found == "stop":
                self._stop.set()
            else:
                self._stop.clear()  # an order to stop came too late for the question before
                self.questions.put(found)
        os.kill(os.getpid(), signal.SIGKILL)  # who started this process is gone

    def check(self) -> None:
        """Raise if the work at hand is to stop."""
        if self._stop.is_set():
            raise _LeftError

    def say(self, message: dict[str, Any]) -> None:
        """Write a message; of those on progress, some."""
        now = time.monotonic()
        if "progress" in message and now - self._told < _OFTEN:
            return
        self._told = now
        self._out.write(json.dumps(message, separators=(",", ":")) + "\n")
        self._out.flush()


def main() -> None:
    """Answer until the questions end."""
    end_with_parent()
    lines = os.fdopen(0, encoding="utf-8")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints, prints to stderr
    settings = json.loads(lines.readline())
    files, megabytes = settings["files"], settings["megabytes"]
    desk, cache = _Desk(lines, out), PlanCache()
    with contextlib.suppress(InputError):  # loads what is compiled before anybody waits for it
        answer(read_view(_WARM, {}), {}, cache, Sayer(lambda _: None, lambda: None))
    limit_memory(megabytes << 20)
    desk.say({"end": True})  # ready
    while True:
        question = desk.questions.get()
        try:
            _answer(question["view"], files, cache, desk)
        except _LeftError:
            pass
        except MemoryError:
            cache = PlanCache()
            too_large = f"needs more than the {megabytes} MB that a page may use"
            desk.say({"faults": [f"{too_large}; try simreduce run"]})
        except Exception as error:  # noqa: BLE001 - a bug; the next question is answered
            traceback.print_exc()
            cache = PlanCache()
            where = "where simreduce serve was started"
            desk.say({"faults": [f"a bug of simreduce: {type(error).__name__}; see {where}"]})
        desk.say({"end": True})


def _answer(query: str, files: dict[str, str], cache: PlanCache, desk: _Desk) -> None:
    try:
        answer(read_view(query, files), files, cache, Sayer(desk.say, desk.check))
    except InputError as error:
        desk.say({"faults": [*error.problems]})
    except SimreduceError as error:
        desk.say({"faults": [str(error)]})


if __name__ == "__main__":
    main()
