"""The process that holds network namespaces and the links between them. Started by `shaped`.

The namespaces have no names: they are open files of this process only. When it ends,
however it ends, the kernel takes them down with all that is in them, so nothing is left to clean up
and two sets never meet. Other processes enter one by `/proc/PID/fd/FD`. Nothing outside the
namespaces is touched.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from simreduce.errors import InputError
from simreduce_validate.running.links import Links
from simreduce_validate.running.serve import serve
from simreduce_validate.running.shaping import (
    address,
    route_settings,
    segments,
    shaping,
    tcp_settings,
)
from simreduce_validate.running.switch import forward

_NEWNET = 0x40000000
_TUNSETIFF, _TUN, _NO_PI = 0x400454CA, 0x0001, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """The open namespaces of one set of links."""

    def __init__(self) -> None:
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._held: list[int] = []

    def open(self, links: Links) -> list[str]:
        """Make the namespaces and the links; the path by which each worker's is entered."""
        self._held = [self._namespace() for _ in range(links.ports)]
        try:
            if links.own_switch:
                self._tun(links)
            else:
                self._veth(links)
            for port, held in enumerate(self._held):
                with self._inside(held):
                    _batch(
                        "ip",
                        [
                            "link set lo up",
                            f"addr add {address(port)}/24 dev eth0",
                            "link set eth0 up",
                        ],
                    )
                    _tcp(links)
        except OSError as error:
            what = error.filename or "network namespaces"
            raise InputError(f"--backend shaped: {what}: {error.strerror}") from None
        return [f"/proc/{os.getpid()}/fd/{held}" for held in self._held]

    def lost(self) -> int:
        """TCP segments that were sent again so far, in all namespaces: a link on which this grows
        is not what it should be.
        """
        found = 0
        for held in self._held:
            with self._inside(held):
                names, values = [
                    line.split()
                    for line in Path("/proc/thread-self/net/snmp").read_text("ascii").splitlines()
                    if line.startswith("Tcp:")
                ]
                found += int(values[names.index("RetransSegs")])
        return found

    def _namespace(self) -> int:
        if _libc.unshare(_NEWNET):
            error = os.strerror(ctypes.get_errno())
            raise InputError(f"--backend shaped: cannot make a network namespace here: {error}")
        held = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._enter(self._home)
        return held

    def _enter(self, held: int) -> None:
        if _libc.setns(held, _NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    @contextmanager
    def _inside(self, held: int) -> Iterator[None]:
        """What this thread does, and starts, happens in a namespace."""
        self._enter(held)
        try:
            yield
        finally:
            self._enter(self._home)

    def _veth(self, links: Links) -> None:
        """A cable from every namespace to a bridge in one more, shaped at both ends: what a worker
        sends, what it gets.
        """
        middle = self._namespace()
        with self._inside(middle):
            _batch("ip", ["link add br0 type bridge", f"link set br0 mtu {links.mtu} up"])
        large = segments(links) * (links.mtu - 20)
        for port, held in enumerate(self._held):
            with self._inside(held):
                _batch("ip", [
                    (f"link add eth0 mtu {links.mtu} type veth peer name p{port} mtu {links.mtu} "
                    f"netns /proc/{os.getpid()}/fd/{middle}"),
                    f"link set dev eth0 gso_max_size {large}",
                ])  # fmt: skip
                _batch("tc", shaping(links, port, "eth0", "dst"))
            with self._inside(middle):
                _batch("ip", [
                    f"link set dev p{port} gso_max_size {large}", f"link set p{port} master br0 up",
                ])  # fmt: skip
                _batch("tc", shaping(links, port, f"p{port}", "src"))

    def _tun(self, links: Links) -> None:
        """A device in every namespace, whose packets a thread of this process passes on."""
        ends = []
        for held in self._held:
            with self._inside(held):
                end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TUN | _NO_PI))
                _batch("ip", [f"link set eth0 mtu {links.mtu}", "link set eth0 txqueuelen 10000"])
            ends.append(end)
        addresses = [
            bytes(int(part) for part in address(port).split(".")) for port in range(links.ports)
        ]
        rates = [links.rate_of(port) for port in range(links.ports)]
        threading.Thread(
            target=_forward, args=(ends, addresses, rates, links.delay), daemon=True
        ).start()


def _tcp(links: Links) -> None:
    """TCP connections that never restart slowly and lose nothing, with a patient timer."""
    for name, value in tcp_settings(links).items():
        Path("/proc/sys/net/ipv4", name).write_text(value, "ascii")
    found = _run(["ip", "route", "show", "dev", "eth0"], "").split("\n")[0].strip()
    _batch("ip", [f"route change {found} dev eth0 {route_settings(links)}"])


def _batch(program: str, lines: Sequence[str]) -> None:
    """Commands of `ip` or `tc`, in one process. InputError with the first that failed."""
    _run([program, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        number = next(
            (line.rpartition(":")[2] for line in lines if line.startswith("Command failed")), ""
        )
        line = text.splitlines()[int(number) - 1] if number.isdecimal() else " ".join(command)
        raise InputError(f"--backend shaped: this kernel cannot {command[0]} {line}: {lines[0]}")
    return done.stdout


def _forward(
    ends: Sequence[int], addresses: Sequence[bytes], rates: Sequence[float], delay: float
) -> None:
    try:
        forward(ends, addresses, rates, delay)
    finally:
        os._exit(1)  # workers then see dead links at once, not a backend that waits


if __name__ == "__main__":
    keeper = Namespaces()
    serve({"open": keeper.open, "lost": keeper.lost})
