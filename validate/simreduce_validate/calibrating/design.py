"""Which micro-plans determine which constants, by what the devices are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from simreduce.engine import Calibration, Processor
from simreduce.engine.calibrate import CHAINS, COPIES, SUMS, TRANSFERS
from simreduce.engine.calibrate.fit import FreeConstant
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.sizes import tensor
from simreduce.topology import Link, Topology, direction, route
from simreduce_validate.calibrating.controls import BETWEEN, WITHIN, Key
from simreduce_validate.calibrating.micro import (
    FLOAT32,
    Micro,
    Pair,
    around,
    casts,
    crossing,
    cuts,
    flight,
    joins,
    relay,
    scales,
    signals,
    sums,
    to_and_fro,
)
from simreduce_validate.devices import SHAPED, Devices
from simreduce_validate.running import placement
from simreduce_validate.running.computer import Computer, own_cache, usable_cores
from simreduce_validate.running.links import CABLE

KIB, MIB = 1 << 10, 1 << 20

_TINY = 4
WHOLE = ("chain", "bidirectional_ring")
"""All-reduces among the micro-plans of one process: there an op takes longer amid many others of
all kinds than in a row of its own kind.
"""
_LONGEST_TRANSFER = 0.05
"""Seconds that the largest transfer over links of known rate may take."""


@dataclass(frozen=True, slots=True)
class Design:
    """The micro-plans to measure, and the constants to fit to them.

    `micros` are fitted together. `pairs` are transfers of two sizes, each alone, which show ports
    that differ. `relay` shows whether two transfers from one device to another queue. `directions`
    says which constants are known for each direction of links. `controls` are those of `micros`
    that are timed again when the constants are tried.
    """

    base: Calibration
    constants: tuple[FreeConstant, ...]
    micros: tuple[Micro, ...]
    pairs: tuple[tuple[Pair, Micro, Micro], ...] = ()
    relay: Micro | None = None
    directions: str = ""
    controls: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Cores:
    """How many cores the workers of a computer have; `shared` by all workers, if there is one
    computer. `own_cache` is what each has for itself, in bytes; 0: it is not known.
    """

    count: float
    shared: bool = True
    own_cache: int = 0


def cores_of(computers: Sequence[Computer]) -> Cores:
    """Of the computers of all workers; none: this one's. Where there are several, a machine of the
    model is a worker: it has its part of its computer's cores, and all have as many as the one with
    the fewest.
    """
    if not computers:
        return Cores(usable_cores(), own_cache=own_cache())
    if len({computer.name for computer in computers}) < 2:
        return Cores(min(computer.cores for computer in computers))
    names = [computer.name for computer in computers]
    return Cores(min(max(c.cores / names.count(c.name), 1.0) for c in computers), shared=False)


def design(devices: Devices, cores: Cores) -> Design:
    """What to measure on these devices. The constants of cores of CPU devices begin with `cores`;
    the micro-plans do not depend on them.
    """
    names = devices.layout.devices
    if devices.stage.backend == "gpu" and not devices.pretend:
        return _gpus(devices.stage.machine, names, devices.layout.ranks)
    processor = Processor(cores=cores.count, shared=cores.shared)
    base = Calibration("fitted", cpu=processor)
    if devices.stage.backend in ("cluster", SHAPED):
        return _processes(devices, base, names)
    return _one_process(devices, base, cores.own_cache)


def _local(names: Sequence[str], ranks: int, sizes: Sequence[int]) -> list[Micro]:
    """What a device does without others: sums, joins, cuts; and all devices at once."""
    found = [sums(names, [0], length, _TINY) for length in (8, 64)]
    found += [sums(names, [0], 8, nbytes) for nbytes in sizes]
    found += [
        sums(names, [0], 4, sizes[-1] // 2, terms=4),
        sums(names, range(ranks), 8, sizes[-1] // 2),
    ]
    found += [
        crossing(names, [(i % ranks, i % ranks) for i in range(many)], _TINY, f"{many} kept")
        for many in (8, 64)
    ]
    found += [joins(names, 0, 16, 16 * _TINY), joins(names, 0, 4, sizes[-1] // 2)]
    found += [
        write(names, 0, *many)
        for write in (scales, casts)
        for many in ((64, _TINY), (16, sizes[-2]), (4, sizes[-1] // 2))
    ]
    return [*found, cuts(names, 0, 64, 64 * 64), *(cuts(names, 0, 5, n) for n in sizes[-2:])]


_LOCAL = (
    FreeConstant.about("dispatch.input", 3e-6),
    FreeConstant.about("dispatch.output", 3e-6),
    FreeConstant.about("dispatch.add", 3e-6),
    FreeConstant.about("dispatch.concat", 3e-6),
    FreeConstant.about("dispatch.slice", 3e-6),
    FreeConstant.about("dispatch.scale", 3e-6),
    FreeConstant.about("dispatch.cast", 3e-6),
    FreeConstant.about("cpu.rates.add", 8e9),
    FreeConstant.about("cpu.rates.slice", 8e9),
    FreeConstant.about("cpu.rates.concat", 8e9),
    FreeConstant.about("cpu.rates.scale", 8e9),
    FreeConstant.about("cpu.rates.cast", 8e9),
)


def _one_process(devices: Devices, base: Calibration, own_cache: int) -> Design:
    names, ranks = devices.layout.devices, devices.layout.n
    sizes = (64 * KIB, 256 * KIB, MIB, 16 * MIB)
    back_and_forth = [to_and_fro(0, 1, hops) for hops in WITHIN.values()]
    micros = [flight(names, path, _TINY) for path in back_and_forth]
    micros += [flight(names, back_and_forth[0], nbytes) for nbytes in sizes]
    micros += [
        crossing(names, [*around(ranks, times)], _TINY, f"{times} from each") for times in (4, 24)
    ]
    micros += [crossing(names, [*around(ranks)], nbytes, "1 from each") for nbytes in sizes]
    micros += [whole(devices, name, nbytes) for name in WHOLE for nbytes in (KIB, 64 * KIB, MIB)]
    cpu = replace(base.cpu or Processor(), own_cache=own_cache)
    constants = (
        FreeConstant.about("step", 50e-6),
        FreeConstant.about("dispatch.copy", 3e-6),
        FreeConstant.about("cpu.rates.copy", 8e9),
        *_LOCAL,
        _many(base, "cores"),
        *([FreeConstant.about("cpu.past_own", 60e9, 30.0)] if own_cache else []),
        FreeConstant.about("cpu.cache", 16 * MIB, 30.0),
        FreeConstant.about("cpu.memory", 15e9, 30.0),
    )
    micros += _local(names, ranks, sizes)
    return Design(
        replace(base, cpu=cpu), constants, tuple(micros), controls=_controls(COPIES, sizes)
    )


def _controls(between: str, sizes: Sequence[int]) -> tuple[Key, ...]:
    """One of fixed costs, the others of bytes, between two devices and on one. No shorter one: a
    step of few small ops takes a quarter longer here, beside large ones, than beside small
    candidates, as if all had become faster.
    """
    return (CHAINS, _TINY), *((kind, nbytes) for kind in (between, SUMS) for nbytes in sizes[-2:])


def _many(base: Calibration, name: str) -> FreeConstant:
    """So many cores: from one to more than there are."""
    assert base.cpu  # noqa: S101 - designs of CPU devices have one
    most = max(base.cpu.cores, 1.01)
    return FreeConstant(f"cpu.{name}", (1.0 + most) / 2, 1.0, most * 1.5, hard=True)


def whole(devices: Devices, strategy: str, nbytes: int) -> Micro:
    """A whole all-reduce."""
    return Micro(strategy, nbytes, compile_plan(strategy, tensor(nbytes, FLOAT32), devices.layout))


def _processes(devices: Devices, base: Calibration, names: Sequence[str]) -> Design:
    """Devices of several processes: transfers between processes, copies within one if any has
    several devices.
    """
    links, wired = devices.links, devices.links is not None
    largest = 8 * MIB
    if links is not None:
        rate = min(links.goodput(port) for port in range(links.ports))
        while largest > 64 * KIB and largest / rate > _LONGEST_TRANSFER:
            largest //= 2
    sizes = [largest // 16, largest // 4, largest]
    groups = _by_process(devices)
    heads = [group[0] for group in groups]
    back_and_forth = [to_and_fro(heads[0], heads[1], hops) for hops in (1, *BETWEEN.values())]
    micros = [flight(names, path, _TINY) for path in back_and_forth]
    micros += [flight(names, back_and_forth[1], nbytes) for nbytes in sizes]
    micros += [
        crossing(names, [*_between(groups, times)], _TINY, f"{times} from each")
        for times in (1, 4, 12)
    ]
    micros += [crossing(names, [*_between(groups)], nbytes, "1 from each") for nbytes in sizes]
    if len(heads) > 2:
        micros += [crossing(names, [(heads[0], i) for i in heads[1:]], largest, "one to all")]
        micros += [crossing(names, [(i, heads[0]) for i in heads[1:]], largest, "all to one")]
    delay, processor = links.delay if links else 0.0, base.cpu or Processor()
    constants = (
        FreeConstant.about("step", 0.5e-3),
        FreeConstant.about("cpu.message", 0.2e-3),
        # Where no wire takes time, what a message costs is all there is.
        *(
            [FreeConstant.about(f"links.{CABLE}.latency", max(delay / 2, 50e-6))]
            if delay or not processor.shared
            else []
        ),
        *(
            [FreeConstant.about(f"links.{CABLE}.bandwidth", links.rate)]
            if links
            else [FreeConstant.about("cpu.rates.transfer", 1e9), _many(base, "moving")]
        ),
        *_LOCAL,
        # Fewer move bytes than do messages; from equal ones, the fit finds no such pair.
        replace(_many(base, "cores"), start=processor.cores),
    )
    if any(len(group) > 1 for group in groups):
        micros += _within(names, groups, sizes)
        constants += (
            FreeConstant.about("dispatch.copy", 3e-6),
            FreeConstant.about("cpu.rates.copy", 8e9),
        )
    alone = (
        dict.fromkeys(around(len(heads), min(2, len(heads) - 1)))
        if wired and len(heads) > 2
        else {}
    )
    pairs = [(pair, flight(names, pair, sizes[1]), flight(names, pair, sizes[2])) for pair in alone]
    follows = relay(names, heads[0], heads[1], heads[2], largest) if len(heads) > 2 else None
    return Design(
        base, constants, (*micros, *_local(names, devices.layout.n, sizes)), tuple(pairs), follows,
        _directions(wired=wired, ports=bool(pairs)), _controls(TRANSFERS, sizes),
    )  # fmt: skip


def _directions(*, wired: bool, ports: bool) -> str:
    """A step begins and ends at one clock, so whatever passes a port one way has passed, or will
    pass, it the other way too: only the sum of both latencies shows. Rates show, as bytes go one
    way only.
    """
    if not wired:
        return "alike in both"
    rates = (
        "rates of each port in each"
        if ports
        else "rates alike in both: ports are told apart by a third"
    )
    return f"{rates}; latencies alike in both: one clock sees their sum"


def _by_process(devices: Devices) -> list[list[int]]:
    """The ranks of each process, in the order of the processes' first ranks."""
    found: dict[int, list[int]] = {}
    for rank, process in enumerate(placement.numbers(devices.stage.place)[: devices.layout.n]):
        found.setdefault(process, []).append(rank)
    return list(found.values())


def _between(groups: Sequence[Sequence[int]], times: int = 1) -> Iterator[Pair]:
    """Pairs of ranks in different processes: `around` the processes, every rank to the one at its
    own place in the other process.
    """
    for source, target in around(len(groups), times):
        for place, rank in enumerate(groups[source]):
            yield rank, groups[target][place % len(groups[target])]


def _within(
    names: Sequence[str], groups: Sequence[Sequence[int]], sizes: Sequence[int]
) -> list[Micro]:
    """Copies between devices of one process, in one and in all at once."""
    several = [group for group in groups if len(group) > 1]
    # A step of several processes takes as long as a hundred copies within one.
    back_and_forth = [to_and_fro(several[0][0], several[0][1], hops) for hops in (4, 128)]
    micros = [flight(names, path, _TINY) for path in back_and_forth]
    micros += [flight(names, back_and_forth[0], nbytes) for nbytes in sizes]
    for times, size in ((4, _TINY), (24, _TINY), *((1, nbytes) for nbytes in sizes)):
        pairs = [(group[a], group[b]) for group in several for a, b in around(len(group), times)]
        micros.append(crossing(names, pairs, size, f"{times} within the process from each"))
    return micros


_ISSUE = (
    FreeConstant.about("issue.device", 15e-6, known=True),
    FreeConstant.about("issue.copy", 15e-6, pull=0.05, known=True),
    FreeConstant.about("issue.add", 5e-6, pull=0.3, known=True),
    FreeConstant.about("issue.input", 3e-6, pull=0.3, known=True),
    FreeConstant.about("issue.slice", 5e-6, known=True),
    FreeConstant.about("issue.message", 15e-6, known=True),
)
"""What a host takes, as known before: a launch of a kernel takes 4 to 6 us, the read of a variable
less, a copy between devices three launches. Where values are only read to be summed, their shares
are hardly told apart.
"""


def _gpus(machine: Topology, names: Sequence[str], ranks: Sequence[str]) -> Design:
    """A pair of GPUs for every sort of way between two; and the ways to the host and back, each
    alone, as these differ.

    The host issues ops one after another, so a chain of copies takes their latencies too, and as
    many at once do not. What it does for a device shows where one takes part and where two do.
    """
    gpus = range(len(ranks))
    hosts = [i for i, name in enumerate(names) if machine.nodes[name].kind == "cpu"][:1]
    between = _ways(machine, names, combinations(gpus, 2))
    aside = _ways(machine, names, (pair for a in gpus for h in hosts for pair in ((a, h), (h, a))))
    sizes = (MIB, 16 * MIB, 64 * MIB)
    micros: list[Micro] = []
    for a, b in between.values():
        micros += [
            flight(names, [(a, b)[i % 2] for i in range(hops + 1)], _TINY) for hops in (2, 16)
        ]
        micros += [flight(names, (a, b, a), nbytes) for nbytes in sizes]
    for a, b in aside.values():
        micros += [flight(names, (a, b), nbytes) for nbytes in (_TINY, *sizes)]
    for a, b in (*between.values(), *aside.values()):
        micros += [crossing(names, [(a, b)] * 8, _TINY, f"8 times {names[a]}>{names[b]}")]
    micros += [sums(names, [0], length, _TINY) for length in (8, 64)]
    micros += [crossing(names, [(0, 0)] * many, _TINY, f"{many} kept") for many in (8, 64)]
    micros += [cuts(names, 0, 64, 64 * 64), signals(names, 0, 1, 32, 32 * 64)]
    if math.isfinite(machine.nodes[names[0]].memory_bandwidth):
        micros += [sums(names, [0], 4, nbytes) for nbytes in sizes]
    used = dict.fromkeys(name for way in (*between, *aside) for name in way)
    first = {
        name: next(link for link in machine.links if _name(machine, link) == name) for name in used
    }
    constants = [
        FreeConstant.about("step", 100e-6),
        *_ISSUE,
        *(
            FreeConstant.about(f"links.{name}.bandwidth", link.bandwidth / link.lanes)
            for name, link in first.items()
        ),
        *(
            FreeConstant.about(f"links.{name}.latency", max(link.latency, 1e-6), 100.0)
            for name, link in first.items()
        ),
    ]
    apart = [name for name in used if ":" in name]
    alike = [name for name in used if ":" not in name]
    directions = [
        *([f"{', '.join(apart)} each by itself"] if apart else []),
        *([f"{', '.join(alike)} alike in both: pairs were timed there and back"] if alike else []),
    ]
    return Design(
        Calibration("fitted"), tuple(constants), tuple(micros), directions="; ".join(directions)
    )


def _ways(
    machine: Topology, names: Sequence[str], pairs: Iterable[Pair]
) -> dict[tuple[str, ...], Pair]:
    """The first pair of every sort of way, by the constants of its links."""
    found: dict[tuple[str, ...], Pair] = {}
    for a, b in pairs:
        links = route(machine, names[a], names[b]).links
        found.setdefault(tuple(_name(machine, machine.links[link]) for link in links), (a, b))
    return found


def _name(machine: Topology, link: Link) -> str:
    """Whose constants a link has: its class's, in its own direction where it lies between a GPU and
    its host.
    """
    way = direction(machine.nodes[link.source], machine.nodes[link.target])
    return f"{link.link_class}:{way}" if way else link.link_class
