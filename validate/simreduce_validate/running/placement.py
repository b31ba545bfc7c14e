"""Names of TensorFlow devices, and which device of a plan is which of them."""

from __future__ import annotations

from collections.abc import Sequence


def device(kind: str, number: int, job: str = "localhost", task: int = 0) -> str:
    """TensorFlow's full name of a device: `device("CPU", 3)`."""
    return f"/job:{job}/replica:0/task:{task}/device:{kind}:{number}"


def process(name: str) -> str:
    """The part of a device's name that says in which process it is."""
    return name.rpartition("/")[0]


def is_cpu(name: str) -> bool:
    """Whether a device's memory is the process's own."""
    return "/device:CPU:" in name


def logical_cpus(count: int) -> list[str]:
    """So many CPU devices of one process, which share its memory and cores."""
    return [device("CPU", i) for i in range(count)]


def one_per_worker(count: int) -> list[str]:
    """The CPU of each of so many processes."""
    return [device("CPU", 0, "worker", i) for i in range(count)]


def by_task(tasks: Sequence[Sequence[int]], hosts: Sequence[int], count: int) -> list[str]:
    """Tasks of several devices as one process each: its host (-1: none) and its ranks are CPU devices of the process.

    `count` devices in all; those that are in no task (switches that can sum) are processes of their own, after the tasks'.
    """
    names = [""] * count
    for task, (ranks, host) in enumerate(zip(tasks, hosts, strict=True)):
        members = [*([host] if host >= 0 else []), *ranks]
        for number, member in enumerate(members):
            names[member] = device("CPU", number, "worker", task)
    alone = [i for i, name in enumerate(names) if not name]
    for task, i in enumerate(alone, start=len(tasks)):
        names[i] = device("CPU", 0, "worker", task)
    return names
