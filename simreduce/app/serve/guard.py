"""Who may ask the page: only its own browser tab, on this machine, and only in small pieces."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LONGEST = 8192
"""Bytes of a target (path and query) at most."""

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

    def __init__(self, app: App, token: str, hosts: frozenset[str]) -> None:
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

        status = self._refusal(scope)
        if status:
            await refuse(with_headers, status)
            return
        # What follows the token is all that the page itself sees.
        scope = {**scope, "path": "/" + scope["path"].split("/", 2)[2], "root_path": ""}
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> int:
        """The status of a request that is not let through, 0 for one that is."""
        headers: dict[bytes, list[str]] = {}
        for key, value in scope["headers"]:
            headers.setdefault(key.lower(), []).append(value.decode("latin-1"))
        if headers.get(b"host", []) not in [[host] for host in self.hosts]:
            return 421
        origins = {f"http://{host}" for host in self.hosts}
        if any(origin not in origins for origin in headers.get(b"origin", [])):
            return 403
        sites = headers.get(b"sec-fetch-site", [])
        if any(site not in ("same-origin", "none") for site in sites):
            return 403
        if scope["method"] != "GET":
            return 405
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST:
            return 414
        parts = scope["path"].split("/", 2)
        given = parts[1].encode() if len(parts) == 3 else b""
        return 0 if hmac.compare_digest(given, self._token) else 404


_NAMES = frozenset(name for name, _ in HEADERS)
_WORDS = {
    403: "Only the page itself may ask. Type or paste its address; a link does not open it.",
    404: "There is nothing here. Open the address that simreduce serve printed.",
    405: "Only GET is answered.",
    414: "This address is too long.",
    421: "Open the address that simreduce serve printed.",
    503: "Busy: too many questions at once. Ask again in a moment.",
}


async def refuse(send: Send, status: int) -> None:
    """Send a short text, and close the connection, which may have more to come."""
    text = _WORDS[status].encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
