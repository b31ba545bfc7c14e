"""The devices that will run a plan, and the machine to simulate, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce import units
from simreduce.plan import Plan
from simreduce.planners.layouts import Layout
from simreduce.topology import Cable, Node, Topology, build
from simreduce_validate.running import placement
from simreduce_validate.running.explicit_ops import make_ops_explicit
from simreduce_validate.running.links import CABLE, Links
from simreduce_validate.running.processes import across_processes

_BANDWIDTH = 1e12
"""Bytes/s between CPU devices, uncalibrated: no wire limits them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`place` is the TensorFlow device of every device of `layout`.

    `machine` is simulated: what the devices are, where `layout` is what planners see.
    """

    backend: str
    layout: Layout
    place: tuple[str, ...]
    machine: Topology

    def adapt(self, plan: Plan) -> Plan:
        """The plan as these devices run it, and as it is simulated."""
        return (
            make_ops_explicit(plan)
            if self.one_process
            else across_processes(plan, placement.numbers(self.place))
        )

    @property
    def one_process(self) -> bool:
        """Whether all devices are CPU devices of one process."""
        return self.on_cpus and len(set(placement.numbers(self.place))) == 1

    @property
    def on_cpus(self) -> bool:
        """Whether all devices are CPU devices."""
        return all(map(placement.is_cpu, self.place))

    def lacks(self, plan: Plan) -> list[str]:
        """The devices of a plan that TensorFlow does not have."""
        used = sorted(set(plan.device.tolist()))
        return [plan.devices[i] for i in used if self.place[i] == placement.NOWHERE]


def build_stage(
    backend: str,
    layout: Layout,
    topology: Topology,
    links: Links | None = None,
    *,
    pretend: bool = False,
) -> Stage:
    """The devices of `layout` on a backend of that name. GPUs are those of `topology`; CPU devices
    are what they are.
    """
    devices = layout.devices
    if links is not None:
        place = placement.one_per_worker(len(devices))
        return Stage(backend, layout, tuple(place), links.machine())
    if backend == "gpu" and not pretend:
        return Stage(backend, layout, tuple(placement.gpus(layout, devices)), topology)
    place = (
        placement.workers(layout, devices)
        if backend == "cluster"
        else placement.logical_cpus(len(devices))
    )
    return Stage(backend, layout, tuple(place), cpu_machine(devices, place))


def cpu_machine(devices: Sequence[str], place: Sequence[str]) -> Topology:
    """CPU devices as a machine for each of their processes. What limits them is not wires but
    cores, which a calibration knows.
    """
    numbers = placement.numbers(place)
    nodes = [
        Node(name, "cpu", machine=str(number), transit=False)
        for name, number in zip(devices, numbers, strict=True)
    ]
    cables = [
        Cable(name, "computer", CABLE, 1, _BANDWIDTH, _BANDWIDTH, 0.0, holds_lane=False)
        for name in devices
    ]
    count = units.plural(len(devices), "CPU device")
    title = f"{count} in {units.plural(len(set(numbers)), 'process', 'processes')}"
    return build(
        f"cpu:{len(devices)}",
        title,
        "this computer",
        [*nodes, Node("computer", "switch", machine="")],
        cables,
    )
