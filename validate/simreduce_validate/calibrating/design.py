"""Which micro-plans determine which constants, by what the devices are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.engine import Calibration, Processor
from simreduce.topology import Topology, route
from simreduce_validate.asked import SHAPED, Devices
from simreduce_validate.calibrating.constants import Constant
from simreduce_validate.calibrating.micro import (
    Micro,
    Pair,
    around,
    crossing,
    cuts,
    flight,
    joins,
    relay,
    sums,
)
from simreduce_validate.running.links import CABLE

KIB, MIB = 1 << 10, 1 << 20

_TINY = 4
_LONGEST_TRANSFER = 0.05
"""Seconds that the largest transfer over links of known rate may take."""


@dataclass(frozen=True, slots=True)
class Design:
    """`micros` are measured and fitted together. `pairs` are transfers of two sizes, each alone, which show ports that
    differ, and `relay` says whether two transfers from one device to another go one after the other; () and None where that
    is not asked.
    """

    base: Calibration
    constants: tuple[Constant, ...]
    micros: tuple[Micro, ...]
    pairs: tuple[tuple[Pair, Micro, Micro], ...] = ()
    relay: Micro | None = None


def design(devices: Devices, cores: int) -> Design:
    """What to measure on these devices. `cores` is how many this computer has, where CPU devices begin with that."""
    names, ranks = devices.layout.devices, devices.layout.n
    if devices.stage.backend == "gpu" and not devices.pretend:
        return _gpus(devices.stage.machine, names, devices.layout.ranks)
    # Workers at addresses that were given have computers of their own, taken to be like this one.
    processor = Processor(cores=float(cores), moving=float(cores), shared=not devices.workers)
    base = Calibration("fitted", cpu=processor)
    if devices.stage.backend in ("cluster", SHAPED):
        return _processes(devices, base, names, ranks)
    return _one_process(base, names, ranks)


def _local(names: Sequence[str], ranks: int, sizes: Sequence[int]) -> list[Micro]:
    """What a device does without others: sums, joins, cuts; and all devices at once."""
    found = [sums(names, [0], length, _TINY) for length in (8, 64)]
    found += [sums(names, [0], 8, nbytes) for nbytes in sizes]
    found += [sums(names, [0], 4, sizes[-1] // 2, terms=4), sums(names, range(ranks), 8, sizes[-1] // 2)]
    found += [
        crossing(names, [(i % ranks, i % ranks) for i in range(many)], _TINY, f"{many} kept")
        for many in (8, 64)
    ]
    found += [joins(names, 0, 16, 16 * _TINY), joins(names, 0, 4, sizes[-1] // 2)]
    return [*found, cuts(names, 0, 64, 64 * 64)]


_LOCAL = (
    Constant.about("dispatch.input", 3e-6),
    Constant.about("dispatch.output", 3e-6),
    Constant.about("dispatch.add", 3e-6),
    Constant.about("dispatch.concat", 3e-6),
    Constant.about("dispatch.slice", 3e-6),
    Constant.about("cpu.rates.add", 8e9),
    Constant.about("cpu.rates.concat", 8e9),
)


def _one_process(base: Calibration, names: Sequence[str], ranks: int) -> Design:
    sizes = (64 * KIB, MIB, 16 * MIB)
    back_and_forth = [[i % 2 for i in range(hops + 1)] for hops in (4, 32)]
    micros = [flight(names, path, _TINY) for path in back_and_forth]
    micros += [flight(names, back_and_forth[0], nbytes) for nbytes in sizes]
    micros += [crossing(names, [*around(ranks, times)], _TINY, f"{times} from each") for times in (4, 24)]
    micros += [crossing(names, [*around(ranks)], nbytes, "1 from each") for nbytes in sizes]
    constants = (
        Constant.about("step", 50e-6),
        Constant.about("dispatch.copy", 3e-6),
        Constant.about("cpu.rates.copy", 8e9),
        *_LOCAL,
        *_cores(base),
        Constant.about("cpu.cache", 16 * MIB, 30.0),
        Constant.about("cpu.memory", 15e9, 30.0),
    )
    return Design(base, constants, (*micros, *_local(names, ranks, sizes)))


def _cores(base: Calibration) -> tuple[Constant, ...]:
    assert base.cpu  # noqa: S101 - designs of CPU devices have one
    most = max(base.cpu.cores, 1.01)
    middle = (1.0 + most) / 2
    return tuple(Constant(name, middle, 1.0, most * 1.5, hard=True) for name in ("cpu.cores", "cpu.moving"))


def _processes(devices: Devices, base: Calibration, names: Sequence[str], ranks: int) -> Design:
    links, wired = devices.links, devices.links is not None
    largest = 8 * MIB
    if links is not None:
        rate = min(links.goodput(port) for port in range(links.ports))
        while largest > 64 * KIB and largest / rate > _LONGEST_TRANSFER:
            largest //= 2
    sizes = [largest // 16, largest // 4, largest]
    # Ending elsewhere than the step begins, as reductions do.
    back_and_forth = [[i % 2 for i in range(hops + 1)] for hops in (1, 3, 11)]
    micros = [flight(names, path, _TINY) for path in back_and_forth]
    micros += [flight(names, back_and_forth[1], nbytes) for nbytes in sizes]
    micros += [crossing(names, [*around(ranks, times)], _TINY, f"{times} from each") for times in (1, 4, 12)]
    micros += [crossing(names, [*around(ranks)], nbytes, "1 from each") for nbytes in sizes]
    if ranks > 2:
        micros += [crossing(names, [(0, i) for i in range(1, ranks)], largest, "one to all")]
        micros += [crossing(names, [(i, 0) for i in range(1, ranks)], largest, "all to one")]
    delay = links.delay if links else 0.0
    constants = (
        Constant.about("step", 0.5e-3),
        Constant.about("cpu.message", 0.2e-3),
        # Where no wire takes time, what a message costs is all there is.
        *(
            [Constant.about(f"links.{CABLE}.latency", max(delay / 2, 50e-6))]
            if delay or devices.workers
            else []
        ),
        *(
            [Constant.about(f"links.{CABLE}.bandwidth", links.rate)]
            if links
            else [Constant.about("cpu.rates.transfer", 1e9)]
        ),
        *_LOCAL,
        *_cores(base),
    )
    alone = dict.fromkeys(around(ranks, min(2, ranks - 1))) if wired and ranks > 2 else {}
    pairs = [(pair, flight(names, pair, sizes[1]), flight(names, pair, sizes[2])) for pair in alone]
    follows = relay(names, 0, 1, 2, largest) if ranks > 2 else None
    return Design(base, constants, (*micros, *_local(names, ranks, sizes)), tuple(pairs), follows)


def _gpus(machine: Topology, names: Sequence[str], ranks: Sequence[str]) -> Design:
    """A pair of GPUs for every sort of way between two, and the way to the host and back."""
    ways: dict[tuple[str, ...], Pair] = {}
    count = len(ranks)
    hosts = [i for i, name in enumerate(names) if machine.nodes[name].kind == "cpu"][:1]
    for a in range(count):
        for b in [*range(a + 1, count), *hosts]:
            classes = tuple(
                machine.links[link].link_class for link in route(machine, names[a], names[b]).links
            )
            ways.setdefault(classes, (a, b))
    sizes = (MIB, 16 * MIB, 64 * MIB)
    micros: list[Micro] = []
    for a, b in ways.values():
        micros += [flight(names, [(a, b)[i % 2] for i in range(hops + 1)], _TINY) for hops in (2, 16)]
        micros += [flight(names, (a, b, a), nbytes) for nbytes in sizes]
        micros += [crossing(names, [(a, b)] * 8, _TINY, f"8 times {names[a]}>{names[b]}")]
    micros += [sums(names, [0], length, _TINY) for length in (8, 64)]
    micros += [sums(names, [0], 4, nbytes) for nbytes in sizes]
    used = dict.fromkeys(name for classes in ways for name in classes)
    first = {name: next(link for link in machine.links if link.link_class == name) for name in used}
    constants = [
        Constant.about("step", 100e-6), Constant.about("dispatch.copy", 10e-6), Constant.about("dispatch.add", 10e-6),
        *(Constant.about(f"links.{name}.bandwidth", link.bandwidth / link.lanes, 30.0) for name, link in first.items()),
        *(Constant.about(f"links.{name}.latency", max(link.latency, 1e-6), 100.0) for name, link in first.items()),
    ]  # fmt: skip
    return Design(Calibration("fitted"), tuple(constants), tuple(micros))
