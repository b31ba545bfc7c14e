"""Processes that answer: a few, each ended when the one who asked leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from simreduce.serve.view import Files

_LINE = 64 << 20
"""Bytes of a message at most."""
_PATIENCE = 0.5
"""Seconds that a process gets to stop what it does before it is ended."""
WAITING = 8
"""Questions that may wait for a process; further ones are refused."""


class Busy(Exception):  # noqa: N818 - what it says to who asks
    """Too many wait already."""


class Late(Exception):  # noqa: N818 - likewise
    """An answer took longer than it may."""


class Worker:
    """One process of `simreduce.serve.worker`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.at_work = False

    @classmethod
    async def start(cls, files: Files, megabytes: int, folder: str) -> Worker:
        """Start a process in an empty folder, so that no name means a file of the user."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "simreduce.serve.worker",
            stdin=PIPE, stdout=PIPE, cwd=folder, limit=_LINE,
        )  # fmt: skip
        worker = cls(process)
        await worker._send({"files": dict(files), "megabytes": megabytes})
        async for _ in worker._messages():  # until it is ready
            pass
        return worker

    async def answer(self, view: str) -> AsyncGenerator[dict[str, Any]]:
        """The messages on a view, to the last."""
        self.at_work = True
        await self._send({"view": view})
        async for message in self._messages():
            yield message

    async def _messages(self) -> AsyncGenerator[dict[str, Any]]:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "end" in message:
                self.at_work = False
                return
            yield message
        raise EOFError("the process ended")

    async def _send(self, message: object) -> None:
        assert self.process.stdin is not None  # noqa: S101 - likewise
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def settle(self) -> bool:
        """Stop the work at hand. Whether the process can be used again."""
        if not self.at_work:
            return self.process.returncode is None
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._send("stop")
                async for _ in self._messages():
                    pass
                return True
        await self.end()
        return False

    async def end(self) -> None:
        """End the process, whatever it does."""
        self.kill()
        await self.process.wait()

    def kill(self) -> None:
        """Begin to end the process."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Workers:
    """At most `count` processes, each for one question at a time."""

    def __init__(self, files: Files, count: int, megabytes: int, seconds: float) -> None:
        self.files, self.count, self.megabytes, self.seconds = files, count, megabytes, seconds
        self.waiting = 0
        self._free: list[Worker] = []
        self._all: set[Worker] = set()
        self._places = asyncio.Semaphore(count)
        self._folder = tempfile.TemporaryDirectory(prefix="simreduce-serve-")

    @property
    def busy(self) -> bool:
        """Whether an answer is computed."""
        return any(worker.at_work for worker in self._all)

    async def warm(self) -> None:
        """Start a process before anybody asks."""
        self._free.append(await self._start())

    async def _start(self) -> Worker:
        worker = await Worker.start(self.files, self.megabytes, self._folder.name)
        self._all.add(worker)
        return worker

    async def answer(self, view: str) -> AsyncGenerator[dict[str, Any]]:
        """The messages on a view. Whoever closes this before its end stops the work."""
        if self.waiting >= WAITING:
            raise Busy
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        worker = ending = None
        try:
            worker = self._free.pop() if self._free else await self._start()
            ending = asyncio.get_running_loop().call_later(self.seconds, worker.kill)
            async with aclosing(worker.answer(view)) as messages:
                async for message in messages:
                    yield message
        except EOFError:
            raise Late from None
        finally:
            if ending is not None:
                ending.cancel()
            await asyncio.shield(self._put_back(worker))

    async def _put_back(self, worker: Worker | None) -> None:
        try:
            if worker is not None and await worker.settle():
                self._free.append(worker)
            elif worker is not None:
                self._all.discard(worker)
        finally:
            self._places.release()

    async def end(self) -> None:
        """End all processes."""
        await asyncio.gather(*(worker.end() for worker in self._all))
        self._folder.cleanup()
