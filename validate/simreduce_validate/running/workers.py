"""The processes of a cluster: where each is, how it is started, and that all are stopped."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from simreduce_validate.running.child import START_SECONDS, Child
from simreduce_validate.running.computer import Computer

SERVER = "simreduce_validate.running.server"


@dataclass(frozen=True, slots=True)
class Worker:
    """`address` is `HOST:PORT`, as the other workers reach it. `prefix` is the command that starts
    a process there: `("ip", "netns", "exec", "ns0")`, `("ssh", "node3")`; none for this machine.
    """

    address: str
    prefix: tuple[str, ...] = ()


def loopback(count: int) -> list[Worker]:
    """Workers on free ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [Worker(f"127.0.0.1:{each.getsockname()[1]}") for each in sockets]
    finally:
        for each in sockets:
            each.close()


def beside(worker: Worker, number: int) -> Worker:
    """The same place with another port, for a process beside the worker's own: a free one on this
    machine, else `number` on.
    """
    host, _, port = worker.address.rpartition(":")
    if not worker.prefix and host == "127.0.0.1":
        return loopback(1)[0]
    return Worker(f"{host}:{int(port) + number}", worker.prefix)


@contextmanager
def start_workers(
    workers: Sequence[Worker], cpus: Sequence[int], threads: int
) -> Iterator[list[Computer]]:
    """A server for every worker, with so many CPU devices each; all are stopped in the end,
    whatever happens. The computer of each.

    DeviceError if one does not start.
    """
    addresses = [worker.address for worker in workers]
    with ExitStack() as stack:
        children = []
        for task, worker in enumerate(workers):
            child = Child(
                SERVER,
                f"worker {task} ({worker.address})",
                worker.prefix,
                [("CUDA_VISIBLE_DEVICES", "")],
            )
            stack.callback(child.close)
            children.append(child)
        for task, child in enumerate(children):
            child.tell("start", addresses, task, cpus[task], threads)
        yield [child.answer("start", START_SECONDS) for child in children]
