"""Starts workers in network namespaces, linked at known rates and delays. Needs root, iproute2."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from simreduce.errors import InputError
from simreduce_validate.running.child import Child
from simreduce_validate.running.links import Links
from simreduce_validate.running.shaping import address
from simreduce_validate.running.workers import Worker

NAMESPACES = "simreduce_validate.running.namespaces"
PROBE = "simreduce_validate.running.probe"
_PORT = 2222
_PROBE_PORT = 5301
_SECONDS = 60.0


@dataclass(frozen=True)
class ShapedLinks:
    """Links that are up until the `with` block ends. `workers` say where to start processes, by
    port.
    """

    links: Links
    workers: tuple[Worker, ...]
    _keeper: Child = field(repr=False)

    def delay(self, source: int, target: int, rounds: int = 51) -> float:
        """Seconds of half a round trip of one byte, the median of so many: plain TCP, and nothing
        else on the links.
        """
        with self._probes([(source, target)]) as (probe,):
            trips: list[float] = probe.ask(
                "trips", address(target), _PROBE_PORT, rounds, seconds=_SECONDS
            )
        return statistics.median(trips) / 2

    def rates(self, pairs: Sequence[tuple[int, int]], nbytes: int, rounds: int = 3) -> list[float]:
        """Bytes/s of data of plain TCP connections that all send `nbytes` from a source to a target
        at the same time.

        The largest of so many rounds: what else the machine does can only take from it.
        """
        way = 2 * self.links.delay  # the last byte goes there, the confirmation back
        found = []
        with self._probes(pairs) as probes:
            for number in range(rounds + 1):
                size = (
                    nbytes if number else nbytes // 4
                )  # before the first round, TCP opens its window
                for probe, (_, target) in zip(probes, pairs, strict=True):
                    probe.tell("send", address(target), _PROBE_PORT, size)
                found.append([size / (probe.answer("send", _SECONDS) - way) for probe in probes])
        return [max(each) for each in zip(*found[1:], strict=True)]

    def lost(self) -> int:
        """TCP segments that were sent again so far, between all workers."""
        return int(self._keeper.ask("lost", seconds=_SECONDS))

    @contextmanager
    def _probes(self, pairs: Sequence[tuple[int, int]]) -> Iterator[list[Child]]:
        """A process at the source of each pair; others listen at the targets."""
        with ExitStack() as stack:

            def started(port: int) -> Child:
                child = Child(PROBE, f"the probe at port {port}", self.workers[port].prefix)
                stack.callback(child.close)
                return child

            listening = {target: started(target) for _, target in pairs}
            for target, child in listening.items():
                child.ask("listen", address(target), _PROBE_PORT, seconds=_SECONDS)
            yield [started(source) for source, _ in pairs]


def why_not() -> str:
    """Why links cannot be shaped here, in one line; "" if nothing is known to be missing."""
    if sys.platform != "linux":
        return "--backend shaped needs network namespaces, which only Linux has"
    if os.geteuid() != 0:
        return "--backend shaped needs root, for network namespaces"
    missing = [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]
    return (
        f"--backend shaped needs {' and '.join(missing)} (iproute2, util-linux)" if missing else ""
    )


@contextmanager
def shape_links(links: Links) -> Iterator[ShapedLinks]:
    """Make the links; take them down in the end, whatever happens. InputError, in one line, where
    this cannot be.
    """
    if problem := why_not():
        raise InputError(problem)
    keeper = Child(NAMESPACES, "the keeper of the links")
    try:
        paths: list[str] = keeper.ask("open", links, seconds=_SECONDS)
        workers = tuple(
            Worker(f"{address(port)}:{_PORT}", ("nsenter", f"--net={path}"))
            for port, path in enumerate(paths)
        )
        yield ShapedLinks(links, workers, keeper)
    finally:
        keeper.close()
