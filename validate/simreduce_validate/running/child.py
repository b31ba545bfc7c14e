"""Child processes that import TensorFlow, as the parent sees them.

Requests and answers are pickles on the child's stdin and stdout, so that a child may be on another
host or in another network namespace: whatever its `prefix` starts (`ssh HOST`, `ip netns exec
NAME`). A child whose stdin ends exits at once, so none outlives this process, however that ends.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from simreduce.errors import DeviceError, InputError

ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_ARENA_MAX": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "no_proxy": "*",
}
"""What every child is started with. By default malloc maps every large tensor afresh, and page
faults are what is timed.
"""

_UNSET = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY", "grpc_proxy")
"""gRPC would ask a proxy for 127.0.0.1."""

HEADER = struct.Struct("<Q")
"""Bytes of the pickle that follows."""

START_SECONDS = 120.0
"""To import TensorFlow takes 4 to 40 s on a busy machine."""

_STOP_SECONDS = 5.0


class Child:
    """A process that runs `python -m MODULE`, and answers one request at a time."""

    def __init__(
        self,
        module: str,
        name: str,
        prefix: Sequence[str] = (),
        settings: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`name` is what messages call it; `settings` are more environment variables."""
        self.name = name
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - held until close()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        variables = {**ENVIRONMENT, "PYTHONPATH": path, **dict(settings)}
        command = [
            *prefix, "env", *(part for key in _UNSET for part in ("-u", key)),
            *(f"{key}={value}" for key, value in variables.items()), sys.executable, "-m", module,
        ]  # fmt: skip
        try:
            # A session of its own: what the terminal sends on Ctrl-C is for this process, which
            # then stops its children.
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise DeviceError(
                f"{name}: cannot be started: {command[0]}: {error.strerror}"
            ) from None

    @property
    def pid(self) -> int:
        """Its process id; with a prefix that starts another process, that of the prefix."""
        return self._process.pid

    def ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        """The answer to a request. Raises DeviceError if it fails or takes too long."""
        self.tell(method, *arguments)
        return self.answer(method, seconds)

    def tell(self, method: str, *arguments: Any) -> None:
        """Send a request, whose answer is waited for later."""
        message = pickle.dumps((method, arguments))
        assert self._process.stdin  # noqa: S101
        try:
            self._process.stdin.write(HEADER.pack(len(message)) + message)
            self._process.stdin.flush()
        except OSError:
            raise DeviceError(f"{self.name}: it has ended{self._last_words()}") from None

    def answer(self, method: str, seconds: float) -> Any:
        """The answer to the last request."""
        until = time.monotonic() + seconds
        (size,) = HEADER.unpack(self._read(HEADER.size, method, seconds, until))
        good, value = pickle.loads(self._read(size, method, seconds, until))  # noqa: S301 - our own child wrote it
        if good:
            return value
        if isinstance(value, InputError):
            raise value
        raise DeviceError(f"{self.name}: {value}")

    def close(self) -> None:
        """Close its stdin; if it does not exit, kill it and everything that its prefix started."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):  # it has ended, with a request unread
                    stream.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stderr.close()

    def _read(self, size: int, method: str, seconds: float, until: float) -> bytes:
        assert self._process.stdout  # noqa: S101
        pipe, found = self._process.stdout.fileno(), bytearray()
        while len(found) < size:
            ready, _, _ = select.select([pipe], [], [], max(until - time.monotonic(), 0.0))
            if not ready:
                raise DeviceError(
                    f"{self.name}: no answer to {method!r} within {seconds:g} s{self._last_words()}"
                )
            part = os.read(pipe, min(size - len(found), 1 << 20))
            if not part:
                raise DeviceError(f"{self.name}: it ended during {method!r}{self._last_words()}")
            found += part
        return bytes(found)

    def _last_words(self) -> str:
        """The last line that it wrote on stderr."""
        self._stderr.seek(0)
        lines = [
            line
            for line in self._stderr.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        return f" (its last line: {lines[-1].strip()[:300]})" if lines else ""
