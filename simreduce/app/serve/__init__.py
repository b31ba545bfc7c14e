"""A local page that answers questions while they change. It listens on loopback only.

The server of the page: one socket on loopback, a token, and an end when nobody uses it.

Only the page's own browser tab, on this machine, may ask, and only in small pieces. Answers are
lines of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import shlex
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simreduce import topology
from simreduce.app.serve.view import Files, View, of_jobs
from simreduce.app.serve.workers import Busy, Late, WorkerLost, Workers
from simreduce.computing import grouped
from simreduce.engine import calibrate
from simreduce.errors import InputError, load_extra
from simreduce.planners.packing import PACKERS
from simreduce.report import pages
from simreduce.report.pages import templates
from simreduce.training.memory import POLICIES
from simreduce.training.mesh.pipeline import NAMES as SCHEDULES
from simreduce.version import __version__
from simreduce.workload.decoder import DECODERS
from simreduce.workload.loader import shipped

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


LONGEST = 8192
"""Bytes of a target (path and query) at most."""
_LARGEST = 16_384
"""Bytes of a request's headers at most."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Of every response. There is no script or style but in files of the page."""


class Guard:
    """Lets a request through whose path begins with the token, whose Host is this server, and which
    no other site makes. All others get the same short refusal. Bodies are not read.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k, v) for k, v in message["headers"] if k.lower() not in _NAMES]
                message = {**message, "headers": [*own, *HEADERS]}
            await send(message)

        if status := self._refusal(scope):
            await refuse(with_headers, status)
            return
        # What follows the token is all that the page itself sees.
        scope = {**scope, "path": "/" + scope["path"].split("/", 2)[2], "root_path": ""}
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> int:
        """The status of a request that is not let through, 0 for one that is."""
        headers = grouped((key.lower(), value.decode("latin-1")) for key, value in scope["headers"])
        origins, sites = {f"http://{host}" for host in self.hosts}, {"same-origin", "none"}
        parts = scope["path"].split("/", 2)
        given = parts[1].encode() if len(parts) == 3 else b""
        refused = {
            431: sum(len(key) + len(value) + len(": \r\n") for key, value in scope["headers"])
            > _LARGEST,
            421: headers.get(b"host", []) not in [[host] for host in self.hosts],
            403: not (
                origins.issuperset(headers.get(b"origin", []))
                and sites.issuperset(headers.get(b"sec-fetch-site", []))
            ),
            405: scope["method"] != "GET",
            414: len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST,
            404: not hmac.compare_digest(given, self._token),
            503: len(asyncio.all_tasks()) > CONNECTIONS,
        }
        return next((status for status, holds in refused.items() if holds), 0)


_NAMES = frozenset(name for name, _ in HEADERS)
_WORDS = {
    400: "This is no request of HTTP.",
    403: "Only the page itself may ask. Type or paste its address; a link does not open it.",
    404: "There is nothing here. Open the address that simreduce serve printed.",
    405: "Only GET is answered.",
    414: "This address is too long.",
    421: "Open the address that simreduce serve printed.",
    431: f"The headers are longer than {_LARGEST >> 10} KiB.",
    503: "Busy: too many questions at once. Ask again in a moment.",
}


def _refusal_of(status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the short text of a refusal. The connection is closed, as it may have more to
    come.
    """
    text = _WORDS[status].encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
        *[(b"retry-after", b"2")] * (status == 503),
    ]
    return headers, text


async def refuse(send: Send, status: int) -> None:
    """Send a refusal."""
    headers, text = _refusal_of(status)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


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


def make_app(files: Files, workers: Workers, first: View) -> ASGIApp:
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
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(self._send_all(send)), group.create_task(_left(receive))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()

    async def _send_all(self, send: Send) -> None:
        begun = False
        try:
            async with aclosing(self._lines()) as lines:
                async for line in lines:
                    async with asyncio.timeout(UNREAD):
                        if not begun:
                            begun = True
                            start = {"type": "http.response.start", "status": 200}
                            await send({**start, "headers": [_LINES]})
                        body = {"type": "http.response.body", "body": line}
                        await send({**body, "more_body": bool(line)})
        except Busy:
            await refuse(send, 503)
        except TimeoutError:  # the client is there and does not read
            return

    async def _lines(self) -> AsyncGenerator[bytes]:
        """A line of JSON for each message; the last one is empty."""
        try:
            async with aclosing(self.workers.answer(self.view)) as messages:
                async for message in messages:
                    yield _line(message)
        except Late:
            yield _line({"faults": [_LATE.format(self.workers.seconds)]})
        except WorkerLost:
            yield _line({"faults": [_LOST]})
        yield b""


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


UNREAD = 30.0
"""Seconds in which a client must have read a message."""
_LINES = (b"content-type", b"application/x-ndjson")
_LATE = "the answer took longer than {:g} s (--seconds); ask for less, or type simreduce run"
_LOST = "the process that computed this has ended; ask again, or type simreduce run"


async def _left(receive: Receive) -> None:
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
            models=shipped(),
            calibrations=calibrate.shipped(),
            packers=list(PACKERS),
            decoders=list(DECODERS),
            policies=POLICIES,
            schedules=SCHEDULES,
            nccl_algorithms=_ALGORITHMS,
            nccl_protocols=_PROTOCOLS,
        )
    )


HOST = "127.0.0.1"
CONNECTIONS = 256
"""Tasks of requests at a time at most; further requests get status 503."""
IDLE = 64
"""Open connections at most that have sent no whole request, or wait for the next. The oldest of
more get status 503.
"""
_PATIENCE = 10.0
"""Seconds in which a client must have sent a request."""
_TICK = 1.0


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of the server: processes, megabytes of each, seconds of an answer, and seconds without
    a request after which it stops.
    """

    processes: int = 2
    megabytes: int = 4096
    seconds: float = 300.0
    idle: float = 3600.0


def check_serve() -> None:
    """Raises InputError unless the libraries of the page are installed."""
    for name in ("starlette", "uvicorn", "jinja2"):
        load_extra(name, f"simreduce serve needs {name}: pip install 'simreduce[serve]'")


def serve(
    files: Files,
    first: View,
    ready: Callable[[str], None],
    port: int = 0,
    limits: ServerLimits = ServerLimits(),
) -> None:
    """Serve until Ctrl-C, SIGTERM, or nobody asks any more. `ready` gets the address, which has the
    token; a port of 0 is any free one. InputError if the port is taken.
    """
    listener = _listen(port)
    host = f"{HOST}:{listener.getsockname()[1]}"
    token = secrets.token_urlsafe(24)
    with listener:
        asyncio.run(_run(files, first, limits, listener, host, token, ready))


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise InputError(f"--port {port}: {getattr(error, 'strerror', None) or error}") from None
    return listener


async def _run(
    files: Files, first: View, limits: ServerLimits, listener: socket.socket, host: str, token: str,
    ready: Callable[[str], None],
) -> None:  # fmt: skip

    workers = Workers(files, limits.processes, limits.megabytes, limits.seconds)
    names = frozenset({host, f"localhost:{host.rpartition(':')[2]}"})
    app = Guard(make_app(files, workers, first), token, names)
    server = _server(app, partial(ready, f"http://{host}/{token}/?{first.query}"))
    ending = asyncio.create_task(_end_when_idle(server, workers, limits.idle))
    try:
        await server.serve([listener])
    finally:
        ending.cancel()


def _server(app: Guard, ready: Callable[[], None]) -> uvicorn.Server:
    """The server; `ready` is called once it answers, and ends by signals as it should."""
    import uvicorn  # noqa: PLC0415 - an extra

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                ready()

    # No access log: the path of every request has the token.
    return Server(
        uvicorn.Config(
            app,
            http=_protocol(),
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            log_level="error",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=LONGEST + 2 * _LARGEST,  # the guard counts
        )
    )


def _protocol() -> Any:
    """Uvicorn's protocol, which also closes a connection that sends no whole request in time, or
    does not read what it was sent last. Of idle connections the latest stay: whoever has no token
    cannot keep others away.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 - an extra

    opened: dict[Impatient, None] = {}

    class Impatient(H11Protocol):
        ended = False
        """Whether the client was refused; what it still sends is no request."""

        @property
        def is_idle(self) -> bool:
            """Whether it has sent no whole request, or has its answer."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            opened[self] = None
            for each in [each for each in opened if each.is_idle and not each.ended][:-IDLE]:
                each.end(503)
            for each in [each for each in opened if each.ended][:-CONNECTIONS]:
                each.transport.abort()
            self._watch = self.loop.call_later(_PATIENCE, self._close_if_idle)

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            self._watch.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if not self.ended:
                super().data_received(data)

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - in our words
            self.end(431 if len(self.conn.trailing_data[0]) > _LARGEST else 400)

        def end(self, status: int) -> None:
            """Refuse what the client sends: it may not have sent all, and reads the refusal."""
            headers, text = _refusal_of(status)
            lines = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(),
                *(b": ".join(each) for each in (*headers, *HEADERS)), b"", text,
            ]  # fmt: skip
            self.transport.write(b"\r\n".join(lines))
            self.transport.write_eof()
            self.ended = True

        def _close_if_idle(self) -> None:
            if self.transport.is_closing():
                self.transport.abort()
            elif self.is_idle:
                self.transport.close()  # what was written still goes out
            self._watch = self.loop.call_later(_PATIENCE, self._close_if_idle)

    return Impatient


async def _end_when_idle(server: uvicorn.Server, workers: Workers, idle: float) -> None:
    """Stop the server when it has had no request for so long and nothing is computed."""
    seen, since = -1, asyncio.get_running_loop().time()
    while not server.should_exit:
        await asyncio.sleep(min(_TICK, idle / 4))
        now = asyncio.get_running_loop().time()
        if server.server_state.total_requests != seen or workers.busy:
            seen, since = server.server_state.total_requests, now
        elif now - since >= idle:
            server.should_exit = True
