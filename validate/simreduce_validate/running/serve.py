"""The child's end of `child`: answers requests until stdin ends, then exits at once."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from simreduce.errors import InputError
from simreduce_validate.running.child import HEADER


def serve(methods: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests by the method they name. Anything printed meanwhile goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        method, arguments = requests.get()
        message = pickle.dumps(_answer(methods[method], arguments))
        try:
            answers.write(HEADER.pack(len(message)) + message)
            answers.flush()
        except OSError:
            os._exit(0)


def _answer(method: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, method(*arguments)
    except InputError as error:
        return False, error
    except Exception as error:  # noqa: BLE001 - one line for whatever TensorFlow raises
        return False, f"{type(error).__name__}: {_first_lines(str(error))}"


def _first_lines(text: str) -> str:
    """The first line of an error of TensorFlow's, with the next if the first says only where it
    was.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:500]


def _listen(stream: IO[bytes], requests: queue.SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        (size,) = HEADER.unpack(header)
        message = stream.read(size)
        if len(message) < size:
            break
        requests.put(pickle.loads(message))  # noqa: S301 - our own parent wrote it
    os._exit(0)
