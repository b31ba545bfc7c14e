"""The server: one socket on loopback, a token, and an end when nobody uses it."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simreduce.app.serve.app import make_app
from simreduce.app.serve.guard import Guard
from simreduce.app.serve.view import Files, View
from simreduce.app.serve.workers import Workers
from simreduce.errors import InputError

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
CONNECTIONS = 256
"""Open connections at most; further ones get status 503."""
IDLE = 64
"""Open connections at most that have sent no whole request, or wait for the next."""
_PATIENCE = 10.0
"""Seconds in which a client must have sent a request."""
_LARGEST = 16_384
"""Bytes of a request's line and headers."""
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
        try:
            import_module(name)
        except ImportError:
            words = f"simreduce serve needs {name}: pip install 'simreduce[serve]'"
            raise InputError(words) from None


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
    check_serve()
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
    server = _server(Guard(make_app(files, workers, first), token, names))
    ending = asyncio.create_task(_end_when_idle(server, workers, limits.idle))
    ready(f"http://{host}/{token}/?{first.query}")  # whoever comes early waits in the socket
    try:
        await server.serve([listener])
    finally:
        ending.cancel()


def _server(app: Guard) -> uvicorn.Server:
    import uvicorn  # noqa: PLC0415 - an extra

    # No access log: the path of every request has the token.
    return uvicorn.Server(
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
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=_LARGEST,
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
        @property
        def is_idle(self) -> bool:
            """Whether it has sent no whole request, or has its answer."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            opened[self] = None
            idle = [each for each in opened if each.is_idle]
            for each in idle[:-IDLE]:
                each.transport.abort()
            self._watch = self.loop.call_later(_PATIENCE, self._close_if_idle)

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            self._watch.cancel()
            super().connection_lost(exc)

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
