"""Names of TensorFlow devices, and which device of a plan is which of them."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.errors import InputError
from simreduce.planners.layouts import Layout

NOWHERE = ""
"""In the place of a device that TensorFlow does not have."""


def device(kind: str, number: int, job: str = "localhost", task: int = 0) -> str:
    """TensorFlow's full name of a device: `device("CPU", 3)`."""
    return f"/job:{job}/replica:0/task:{task}/device:{kind}:{number}"


def process(name: str) -> str:
    """The part of a device's name that says in which process it is."""
    return name.rpartition("/")[0]


def numbers(place: Sequence[str]) -> list[int]:
    """Of every device, the number of its process, as they come."""
    order = {name: i for i, name in enumerate(dict.fromkeys(map(process, place)))}
    return [order[process(name)] for name in place]


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
    """Tasks of several devices as one process each: its host (-1: none) and its ranks are CPU
    devices of the process.

    `count` devices in all; those that are in no task (switches that can sum) are processes of their
    own, after the tasks'.
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


def workers(layout: Layout, devices: Sequence[str]) -> list[str]:
    """The TensorFlow device of each of `devices`, the first of `layout`."""
    if len(layout.tasks) == 1:
        return one_per_worker(len(devices))
    index = {name: i for i, name in enumerate(devices)}
    return by_task(layout.tasks, [index.get(host, -1) for host in layout.hosts], len(devices))


def gpus(layout: Layout, devices: Sequence[str]) -> list[str]:
    """Ranks as GPUs, hosts as the CPU, `NOWHERE` for switches that sum. Raises InputError for
    several tasks.
    """
    if len(layout.tasks) > 1:
        words = f"the GPUs of one machine, and these are {len(layout.tasks)}"
        raise InputError(f"--backend gpu: {words}")
    hosts = dict.fromkeys(layout.hosts, device("CPU", 0))
    return [
        device("GPU", i) if name in layout.ranks else hosts.get(name, NOWHERE)
        for i, name in enumerate(devices)
    ]
