"""`simreduce serve` in a process of its own, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit


class Served:
    """`simreduce serve` in a process of its own."""

    def __init__(self, *options: str, log: Path) -> None:
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "simreduce", "serve", "--no-open", *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.url = self.process.stdout.readline().strip()
        parts = urlsplit(self.url)
        self.port, self.token = parts.port, parts.path.strip("/")
        self.host = f"127.0.0.1:{self.port}"

    def connect(self, seconds: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def send(self, request: bytes, seconds: float = 60.0) -> bytes:
        """All that comes back until the server closes; b"" if it cuts the connection."""
        found = b""
        with suppress(ConnectionError), self.connect(seconds) as client:
            client.sendall(request)
            while part := client.recv(65536):
                found += part
        return found

    def get(self, target: str, *headers: str, method: str = "GET", token: bool = True) -> bytes:
        path = f"/{self.token}/{target}" if token else f"/{target}"
        lines = [f"{method} {path} HTTP/1.1", "Connection: close", *headers]
        if not any(line.lower().startswith("host") for line in headers):
            lines.append(f"Host: {self.host}")
        return self.send("\r\n".join([*lines, "", ""]).encode())

    def children(self) -> list[int]:
        """The processes that it started, and those that they started."""
        return _below(self.process.pid)

    def memory(self) -> int:
        """Bytes that it and its processes hold."""
        total = 0
        for pid in (self.process.pid, *self.children()):
            with suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
        return total * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.stdout.close()
        self.process.wait()


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found += [int(folder.name), *_below(int(folder.name))]
    return found


def is_alive(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition, seconds: float = 20.0) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
