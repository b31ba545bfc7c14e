"""The processes that answer: none is lost, whoever leaves or dies, and whenever."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from contextlib import aclosing, suppress

import pytest

from simreduce.app import serve
from simreduce.app.serve import workers as module
from simreduce.app.serve.worker import _Desk, _LeftError
from simreduce.app.serve.workers import Busy, Late, ServerWorker, WorkerLost, Workers
from simreduce.computing.own_files import scratch_folder
from tests.app.serve.servers import is_alive, wait_until

_SCRIPT = r"""
import json, os, sys, time
say = lambda text: (sys.stdout.write(text), sys.stdout.flush())
sys.stdin.readline()
time.sleep(0.2)
say('{"end": true}\n')
for line in sys.stdin:
    found = json.loads(line)
    if found == "stop":
        continue
    view = found["view"]
    say(json.dumps({"pid": os.getpid()}) + "\n")
    if view == "half":
        say('{"page": "ha')
        os._exit(1)
    if view == "long":
        say('{"page": "' + "x" * 5000 + '"}\n')
    if view == "until stop":
        sys.stdin.readline()
    if view == "deaf":
        time.sleep(60)
    say('{"page": ""}\n{"end": true}\n')
"""
"""A process that speaks as simreduce.app.serve.worker does, and misbehaves on request."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Processes that start at once."""

    async def start(cls, _):
        words = [os.sys.executable, "-I", "-c", _SCRIPT]
        return cls(
            await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, limit=2000)
        )

    monkeypatch.setattr(ServerWorker, "start", classmethod(start))


def _run(test, count=1, seconds=20.0):
    """Run a test with workers; at its end all places are free and all processes gone."""

    async def whole():
        workers = Workers({}, count, 64, seconds)
        try:
            async with asyncio.timeout(20):
                found = await test(workers)
                for _ in range(count):  # hangs if one was not put back
                    await workers._places.acquire()
            spare = [await workers._first] if workers._first else []
            assert len(workers._all) == len(workers._free + spare) <= count
            return found
        finally:
            pids = [each.process.pid for each in workers._all]
            await workers.end()
            assert not any(map(is_alive, pids))

    return asyncio.run(whole())


async def _ask(workers, view="fine"):
    return [message async for message in workers.answer(view)]


async def _leave_after(workers, view, seconds):
    """Ask, and leave so much later."""
    asking = asyncio.create_task(_ask(workers, view))
    await asyncio.sleep(seconds)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.15])
def test_who_leaves_while_a_process_starts_leaves_it_to_the_next(seconds):
    async def test(workers):
        await _leave_after(workers, "fine", seconds)
        assert len(await _ask(workers)) == 2
        assert len(workers._all) == 1

    _run(test)


def test_who_leaves_stops_the_work_and_the_process_is_used_again(monkeypatch):
    """One that does not stop is ended, and another takes its place."""
    monkeypatch.setattr(module, "_PATIENCE", 0.3)

    async def test(workers):
        [first, _] = await _ask(workers)
        async with aclosing(workers.answer("until stop")) as messages:
            assert await anext(messages) == first
        assert (await _ask(workers))[0] == first
        async with aclosing(workers.answer("deaf")) as messages:
            assert await anext(messages) == first
        assert (await _ask(workers))[0] != first
        assert not is_alive(first["pid"])

    _run(test)


def test_a_process_stays_warm_for_the_next_question():
    """One starts while the first question is answered, and one as soon as a process is lost."""

    async def started(workers):
        async with asyncio.timeout(10):
            while not (workers._first and workers._first.done()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return (await workers._first).process.pid

    async def test(workers):
        async with aclosing(workers.answer("until stop")) as messages:
            await anext(messages)
            spare = await started(workers)
            assert (await _ask(workers))[0]["pid"] == spare
        with pytest.raises(WorkerLost):
            await _ask(workers, "half")
        with pytest.raises(WorkerLost):
            await _ask(workers, "half")
        await started(workers)
        assert len(workers._all) == 1

    _run(test, 2)


@pytest.mark.parametrize("view", ["half", "long"])
def test_a_process_that_dies_or_says_too_much_is_replaced(view):
    """Who asked hears of it, though half a message came."""

    async def test(workers):
        with pytest.raises(WorkerLost):
            await _ask(workers, view)
        assert len(await _ask(workers)) == 2

    _run(test)


def test_a_process_that_dies_while_nobody_asks_is_not_missed():
    async def test(workers):
        [first, _] = await _ask(workers)
        os.kill(first["pid"], signal.SIGKILL)
        await workers._free[0].process.wait()
        assert (await _ask(workers))[0] != first

    _run(test)


def _end_unseen(worker):
    """End a process while asyncio hears of nothing."""
    worker.kill()
    assert wait_until(lambda: not is_alive(worker.process.pid))


def test_a_process_that_is_killed_before_the_first_question_is_not_missed():
    """Whether it was ready by then, and whether anybody has noticed."""

    async def test(workers):
        for seconds in (0.05, 0.5):
            workers.warm()
            await asyncio.sleep(seconds)
            [worker] = workers._all
            _end_unseen(worker)
            assert len(await _ask(workers)) == 2
            [free] = workers._free
            await workers._drop(workers._free.pop())
            assert free is not worker

    async def refill(workers):
        await test(workers)
        await _ask(workers)

    _run(refill)


def test_folders_of_servers_that_were_killed_go_at_the_next_start(tmp_path):
    """Those of others, and of servers that run, stay."""
    code = (
        "import os, pathlib, sys\n"
        "from simreduce.computing.own_files import scratch_folder\n"
        "with scratch_folder('serve-', pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        assert len(list(tmp_path.iterdir())) == 1
    with scratch_folder("serve-", tmp_path) as one, scratch_folder("serve-", tmp_path) as other:
        assert sorted(map(str, tmp_path.iterdir())) == sorted([one, other])
        (tmp_path / "serve-link.simreduce").symlink_to(one)
    assert [path.name for path in tmp_path.iterdir()] == ["serve-link.simreduce"]


def test_a_folder_of_the_user_with_a_name_that_begins_alike_stays(tmp_path):
    """SIMREDUCE_CACHE_DIR may name a folder that holds more than compiled code."""
    (tmp_path / "scratch-results").mkdir()
    (tmp_path / "scratch-results/precious").touch()
    with scratch_folder("scratch-", tmp_path):
        pass
    assert [path.name for path in tmp_path.glob("*/*")] == ["precious"]


def test_an_answer_has_only_so_much_time():
    async def test(workers):
        with pytest.raises(Late):
            await _ask(workers, "deaf")

    _run(test, seconds=0.5)


def test_many_who_come_and_go_at_once_leave_nothing_behind(monkeypatch):
    """Those whom there is no room for are refused at once."""
    monkeypatch.setattr(module, "_PATIENCE", 0.3)

    async def test(workers):
        views = ["fine", "deaf", "half", "until stop"]
        leaving = [_leave_after(workers, views[i % 4], i * 0.05) for i in range(12)]
        found = await asyncio.gather(*leaving, return_exceptions=True)
        assert any(isinstance(each, Busy) for each in found)
        assert {type(each) for each in found} <= {Busy, WorkerLost, type(None)}
        assert workers.waiting == 0
        assert len(await _ask(workers)) == 2

    _run(test, 2)


def test_a_client_that_does_not_read_holds_no_process(monkeypatch):
    """Its response ends after a while."""
    monkeypatch.setattr(serve, "UNREAD", 0.1)

    async def test(workers):
        async def stay():
            await asyncio.sleep(3600)

        async def never(_):
            await asyncio.sleep(3600)

        await serve._Answer(workers, "fine")({}, stay, never)
        assert len(await _ask(workers)) == 2

    _run(test)


def test_a_response_that_is_cancelled_ends_its_work():
    """As the server does when it ends while answers are computed."""

    async def test(workers):
        async def stay():
            await asyncio.sleep(3600)

        async def send(_):
            pass

        response = asyncio.create_task(serve._Answer(workers, "until stop")({}, stay, send))
        await asyncio.sleep(0.5)
        response.cancel()
        with pytest.raises(asyncio.CancelledError):
            await response
        assert len(await _ask(workers)) == 2

    _run(test)


def test_an_order_to_stop_is_of_the_question_before_it():
    """Also if both came before the question was begun; one that came too late stops nothing."""
    read, write = os.pipe()  # stays open: at its end the process would end itself
    desk = _Desk(os.fdopen(read), None)
    os.write(write, b'{"view": "a"}\n"stop"\n')
    assert desk.questions.get(timeout=10) == {"view": "a"}
    with pytest.raises(_LeftError):
        _until_raises(desk.check)
    os.write(write, b'"stop"\n{"view": "b"}\n')
    assert desk.questions.get(timeout=10) == {"view": "b"}
    desk.check()
    with pytest.raises(queue.Empty):
        desk.questions.get_nowait()


def _until_raises(check):
    for _ in range(1000):
        check()
        signal.sigtimedwait([], 0.01)
