"""Measures plain TCP between two workers, without TensorFlow. `shaped_links` starts it."""

from __future__ import annotations

import functools
import socket
import threading
import time

from simreduce_validate.running.serve import serve

_BUFFER = 1 << 20
_SIZE = 8
"""Bytes of the number that says how many follow."""


def listen(host: str, port: int) -> None:
    """Answer each message with one byte, once all of it is here; from now on."""
    server = socket.create_server((host, port))
    threading.Thread(target=_serve, args=(server,), daemon=True).start()


def trips(host: str, port: int, rounds: int) -> list[float]:
    """Seconds of each of so many round trips of one byte."""
    link = _connect(host, port)
    return [_send(link, 1) for _ in range(rounds)]


def send(host: str, port: int, nbytes: int) -> float:
    """Seconds until so many bytes are confirmed."""
    return _send(_connect(host, port), nbytes)


@functools.cache
def _connect(host: str, port: int) -> socket.socket:
    """One connection to each address, kept: TCP's window opens once."""
    link = socket.create_connection((host, port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _send(link: socket.socket, nbytes: int) -> float:
    message = nbytes.to_bytes(_SIZE, "big") + bytes(nbytes)
    began = time.perf_counter()
    link.sendall(message)
    if not link.recv(1):
        raise ConnectionError("the other end hung up")
    return time.perf_counter() - began


def _serve(server: socket.socket) -> None:
    while True:
        link, _ = server.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_confirm, args=(link,), daemon=True).start()


def _confirm(link: socket.socket) -> None:
    while header := link.recv(_SIZE, socket.MSG_WAITALL):
        left = int.from_bytes(header, "big")
        while left:
            left -= len(link.recv(min(left, _BUFFER)))
        link.sendall(b"k")


if __name__ == "__main__":
    serve({"listen": listen, "trips": trips, "send": send})
