"""Routes of fat trees, rails and single switches by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, row_starts
from simreduce.topology.routing.rule import Bundled


@dataclass(frozen=True, slots=True)
class FatTreeRule:
    """Up to where both ends are below, and down again: port d as a destination takes the up-link d
    mod `spines` of its sender's leaf, and the up-link d / `spines` mod `cores` of that spine
    (D-mod-k: Zahavi 2012).

    `radix` ports are under each of the `leaves`; those left over are under the last. With `rails`,
    ports are numbered machine by machine, so many of each, and the i-th ports of `radix` machines
    share a leaf; d counts leaf by leaf. With `pod`, so many leaves have `spines` of their own, and
    every spine has a cable to each of `cores`, which join the pods; of these the first `large` are
    so, and those after them have one leaf fewer.

    With `bundle`, all take up-link 0, which represents the others (`Bundled`).

    After the hosts' cables come those from leaf 0 to its spines, then those from leaf 1, and so on,
    then those from spine to core. A single switch is a leaf without spines. Without spines several
    leaves are not joined: only ports of one leaf may be asked for.
    """

    hosts: tuple[int, ...]
    radix: int
    leaves: int
    spines: int
    first: int = 0
    rails: int = 1
    pod: int = 0
    cores: int = 0
    large: int = 0
    bundle: bool = False

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """See `RoutingRule`."""
        up = (2 * (self.first + source)).astype(np.int32)
        down = (2 * (self.first + target) + 1).astype(np.int32)
        moves = source != target
        if not self.spines and moves.all():
            return np.arange(0, 2 * len(up) + 1, 2), np.stack([up, down], axis=1).reshape(-1)
        (leaf, _), (other, number) = self.seat(source), self.seat(target)
        far = leaf != other
        apart = self.in_pod(leaf) != self.in_pod(other) if self.pod else np.zeros_like(far)
        start = row_starts(2 * moves + 2 * far + 2 * apart)
        begin, end = start[:-1], start[1:]
        links = np.empty(start[-1], dtype=np.int32)
        links[begin[moves]] = up[moves]
        links[end[moves] - 1] = down[moves]
        if self.spines:
            number = number * (not self.bundle)
            spine, trunk = number % self.spines, self.first + len(self.hosts)
            links[begin[far] + 1] = 2 * (trunk + leaf * self.spines + spine)[far]
            links[end[far] - 2] = 2 * (trunk + other * self.spines + spine)[far] + 1
        if self.pod:
            core, roof = number // self.spines % self.cores, trunk + self.leaves * self.spines
            above, below = (
                (self.in_pod(at) * self.spines + spine) * self.cores + core for at in (leaf, other)
            )
            links[begin[apart] + 2] = 2 * (roof + above)[apart]
            links[end[apart] - 3] = 2 * (roof + below)[apart] + 1
        return start, links

    @property
    def several(self) -> bool:
        """See `RoutingRule`."""
        return self.spines > 1 or self.cores > 1

    def bundled(self, links: int) -> Bundled:
        """See `RoutingRule`: the up-links of a leaf are a bundle, those of a pod's spines another,
        and so are the links down.
        """
        home, share = np.arange(links), np.ones(links)
        trunk = 2 * (self.first + len(self.hosts))
        roof = trunk + 2 * self.leaves * self.spines
        pods = (self.pod and int(self.in_pod(np.array([self.leaves - 1]))[0])) + 1
        for begin, bundles, size in (
            (trunk, self.leaves, self.spines),
            (roof, pods, self.spines * self.cores),
        ):
            if size:
                up = begin + 2 * size * np.repeat(np.arange(bundles), size)
                mine = slice(begin, begin + 2 * size * bundles)
                home[mine] = np.stack([up, up + 1], axis=1).reshape(-1)
                share[mine] = 1.0 / size
        return Bundled(replace(self, bundle=True), home, share)

    def areas(self) -> Sequence[int]:
        """None."""
        return ()

    def in_pod(self, leaf: Ints) -> Ints:
        """The pod of every leaf."""
        rest = leaf - self.large * self.pod
        return np.where(rest < 0, leaf // self.pod, self.large + rest // max(self.pod - 1, 1))

    def seat(self, port: Ints) -> tuple[Ints, Ints]:
        """The leaf of every port, and its number leaf by leaf."""
        machine, rail = port // self.rails, port % self.rails
        leaf = machine // self.radix * self.rails + rail
        return np.minimum(leaf, self.leaves - 1), leaf * self.radix + machine % self.radix
