"""Processes that answer: a few, each ended when the one who asked leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import simreduce
from simreduce.app.serve.view import Files
from simreduce.computing.own_files import scratch_folder

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


class WorkerLost(Exception):  # noqa: N818 - likewise
    """The process of an answer ended by itself, or somebody ended it."""


class ServerWorker:
    """One process of `simreduce.app.serve.worker`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.at_work = False
        self.late = False

    @classmethod
    async def start(cls, folder: str) -> ServerWorker:
        """Start a process in an empty folder, so that no name means a file of the user."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "simreduce.app.serve.worker",
            stdin=PIPE, stdout=PIPE, cwd=folder, limit=_LINE, env=_environment(),
        )  # fmt: skip
        return cls(process)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; asyncio may not know yet that it was killed."""
        if self.process.returncode is not None or not hasattr(os, "waitid"):
            return self.process.returncode is None
        with contextlib.suppress(ChildProcessError):
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, how) is None
        return False

    async def warm(self, files: Files, megabytes: int) -> None:
        """Send the settings, and wait until the process is ready."""
        await self._send({"files": dict(files), "megabytes": megabytes})
        async for _ in self._messages():
            pass

    async def answer(self, view: str) -> AsyncGenerator[dict[str, Any]]:
        """The messages on a view, to the last."""
        self.at_work = True
        await self._send({"view": view})
        async for message in self._messages():
            yield message

    async def _messages(self) -> AsyncGenerator[dict[str, Any]]:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        while line := await self.process.stdout.readline():
            if not line.endswith(b"\n"):
                break  # the process ended while it wrote
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
            return self.is_alive
        # ValueError: a message that is too long.
        with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError):
            async with asyncio.timeout(_PATIENCE):
                await self._send("stop")
                async for _ in self._messages():
                    pass
                return True
        await self.end()
        return False

    def expire(self) -> None:
        """End the process because its time is over."""
        self.late = True
        self.kill()

    async def end(self) -> None:
        """End the process, whatever it does."""
        self.kill()
        await self.process.wait()

    def kill(self) -> None:
        """Begin to end the process."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


def _environment() -> dict[str, str]:
    """That of this process, where simreduce is found from any folder."""
    places = [
        str(Path(simreduce.__file__).parents[1]),
        *(str(Path(each).absolute()) for each in _PATHS.split(os.pathsep) if each),
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}


_PATHS = os.environ.get("PYTHONPATH", "")


class Workers:
    """At most `count` processes, each for one question at a time."""

    def __init__(self, files: Files, count: int, megabytes: int, seconds: float) -> None:
        self.files, self.count, self.megabytes, self.seconds = files, count, megabytes, seconds
        self.waiting = 0
        self._ended = False
        self._first: asyncio.Future[ServerWorker] | None = None
        self._free: list[ServerWorker] = []
        self._all: set[ServerWorker] = set()
        self._places = asyncio.Semaphore(count)
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(scratch_folder("simreduce-serve-"))

    @property
    def busy(self) -> bool:
        """Whether an answer is computed."""
        return any(worker.at_work for worker in self._all)

    def warm(self) -> None:
        """Begin to start a process before anybody asks, if none is free and one more may be."""
        if not (self._free or self._first or self._places.locked() or self._ended):
            self._first = asyncio.ensure_future(self._start())

    async def _start(self) -> ServerWorker:
        worker = await ServerWorker.start(self._folder)
        self._all.add(worker)
        try:
            await worker.warm(self.files, self.megabytes)
        except (OSError, EOFError):
            await self._drop(worker)
            raise
        return worker

    async def _drop(self, worker: ServerWorker) -> None:
        self._all.discard(worker)
        await worker.end()

    async def _take(self) -> ServerWorker:
        """A process that is free, the one that starts, or else a new one."""
        while self._free or self._first:
            if self._first and not self._free:
                first, self._first = self._first, None
                with contextlib.suppress(OSError, EOFError):  # it ended while it started
                    self._free.append(await first)
            elif (worker := self._free.pop()).is_alive:
                return worker
            else:
                await self._drop(worker)
        return await self._start()

    async def answer(self, view: str) -> AsyncGenerator[dict[str, Any]]:
        """The messages on a view. Whoever closes this before its end stops the work."""
        if self.waiting >= WAITING:
            raise Busy
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        # A client that leaves while its process starts leaves the process to the next one.
        taking = asyncio.ensure_future(self._take())
        ending = None
        try:
            worker = await asyncio.shield(taking)
            self.warm()
            ending = asyncio.get_running_loop().call_later(self.seconds, worker.expire)
            async with aclosing(worker.answer(view)) as messages:
                async for message in messages:
                    yield message
        except (OSError, EOFError, ValueError):
            there = taking.done() and taking.exception() is None
            raise Late if there and taking.result().late else WorkerLost from None
        finally:
            if ending is not None:
                ending.cancel()
            await asyncio.shield(self._put_back(taking))

    async def _put_back(self, taking: asyncio.Future[ServerWorker]) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                worker = await taking
                if await worker.settle():
                    self._free.append(worker)
                else:
                    self._all.discard(worker)
        finally:
            self._places.release()
            self.warm()

    async def end(self) -> None:
        """End all processes."""
        self._ended = True
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait([self._first])
        await asyncio.gather(*(worker.end() for worker in self._all))
        self._stack.close()
