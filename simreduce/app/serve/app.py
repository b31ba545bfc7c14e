"""The application: the page, its files, and answers as lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simreduce import topology, workload
from simreduce.app.serve.guard import App, Receive, Scope, Send, refuse
from simreduce.app.serve.view import Files, View, of_jobs
from simreduce.app.serve.workers import Busy, Late, WorkerLost, Workers
from simreduce.engine import calibrate
from simreduce.planners.packing import PACKERS
from simreduce.report import pages
from simreduce.report.pages.html import templates
from simreduce.training.mesh.pipeline import NAMES as SCHEDULES
from simreduce.training.recompute import POLICIES
from simreduce.version import __version__
from simreduce.workload.architectures.decoder import DECODERS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_HERE = Path(__file__).parent / "static"
_PAGES = Path(pages.__file__).parent / "static"
_FILES = {
    "echarts.min.js": (_PAGES, "text/javascript"),
    "charts.js": (_PAGES, "text/javascript"),
    "serve.js": (_HERE, "text/javascript"),
    "page.css": (_PAGES, "text/css"),
    "serve.css": (_HERE, "text/css"),
}
"""All that is served from a disk: no path of a request is looked for."""
_ALGORITHMS = ("Ring", "Tree", "NVLS", "NVLSTree")
_PROTOCOLS = ("LL", "LL128", "Simple")


def make_app(files: Files, workers: Workers, first: View) -> App:
    """The application, without its guard. `first` is the view of a page without a query."""
    from starlette.applications import Starlette  # noqa: PLC0415 - an extra
    from starlette.responses import HTMLResponse, Response as Plain  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    async def page(_: Request) -> Response:
        return HTMLResponse(_page(files, first))

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            return Plain("There is nothing here.", 404, media_type="text/plain")
        return Plain(_content(name), media_type=_FILES[name][1])

    async def answer(request: Request) -> Response:
        return _Answer(workers, request.url.query)  # type: ignore[return-value]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            workers.warm()
            yield
        finally:
            await workers.end()

    routes = [Route("/", page), Route("/answer", answer), Route("/{name}", file)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False  # it would redirect to where the token is missing
    return app


class _Answer:
    """A response: messages as they come, until the last, or until the browser leaves."""

    def __init__(self, workers: Workers, view: str) -> None:
        self.workers, self.view = workers, view

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the messages."""
        messages = self.workers.answer(self.view)
        left = asyncio.create_task(_until_left(receive))
        try:
            await self._send_all(messages, left, send)
        finally:
            left.cancel()
            await messages.aclose()

    async def _send_all(
        self, messages: AsyncGenerator[dict[str, Any]], left: asyncio.Task[None], send: Send
    ) -> None:
        begun = False
        while True:
            coming = asyncio.ensure_future(anext(messages, None))
            if not await _comes(coming, left):
                return
            try:
                message = coming.result()
            except Busy:
                await refuse(send, 503)
                return
            except Late:
                message = {"faults": [_LATE.format(self.workers.seconds)]}
            except WorkerLost:
                message = {"faults": [_LOST]}
            line = b"" if message is None else json.dumps(message).encode() + b"\n"
            more = message is not None and "faults" not in message
            try:
                async with asyncio.timeout(UNREAD):
                    if not begun:
                        begun = True
                        start = {"type": "http.response.start", "status": 200}
                        await send({**start, "headers": [_LINES]})
                    await send({"type": "http.response.body", "body": line, "more_body": more})
            except TimeoutError:  # the client is there and does not read
                return
            if not more:
                return


UNREAD = 30.0
"""Seconds in which a client must have read a message."""
_LINES = (b"content-type", b"application/x-ndjson")
_LATE = "the answer took longer than {:g} s (--seconds); ask for less, or type simreduce run"
_LOST = "the process that computed this has ended; ask again, or type simreduce run"


async def _comes(coming: asyncio.Future[Any], left: asyncio.Future[None]) -> bool:
    """Whether something comes before the browser leaves; else the wait for it is over."""
    try:
        await asyncio.wait({coming, left}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait({coming})
    return not coming.cancelled()


async def _until_left(receive: Receive) -> None:
    """Wait until the browser has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


@cache
def _content(name: str) -> bytes:
    return (_FILES[name][0] / name).read_bytes()


def _page(files: Files, first: View) -> str:
    """The page before it has an answer."""
    jobs = of_jobs(files)
    machines = [(name, "from the command line") for name in files if name not in jobs]
    return str(
        templates(_HERE)
        .get_template("serve.html")
        .render(
            version=__version__,
            first=first,
            query=first.query,
            paths=json.dumps({name: f"{shlex.quote(path)} " for name, path in files.items()}),
            jobs=jobs,
            machines=[*machines, *topology.shipped()],
            models=workload.shipped(),
            calibrations=calibrate.shipped(),
            packers=list(PACKERS),
            decoders=list(DECODERS),
            policies=POLICIES,
            schedules=SCHEDULES,
            nccl_algorithms=_ALGORITHMS,
            nccl_protocols=_PROTOCOLS,
        )
    )
