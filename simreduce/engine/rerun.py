"""A plan whose time is asked for often, each time with other constants of NCCL."""

from __future__ import annotations

import simpy

from simreduce.engine.calibration import Calibration, NcclConstants
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering.lower import lower_unpriced
from simreduce.engine.runtime import Runtime
from simreduce.engine.simulation import step_cost
from simreduce.engine.submission import Timeline
from simreduce.plan import Plan
from simreduce.topology import Folded, Topology


class Rerun:
    """What no constant of NCCL matters to is found once. Not for calibrations of CPU devices."""

    def __init__(
        self,
        plan: Plan,
        topology: Topology | Folded,
        runtime: Runtime,
        calibration: Calibration,
    ) -> None:
        self._at = topology, calibration, runtime
        self._lanes: dict[str, int] = {}
        fabric = Fabric(simpy.Environment(), topology, calibration, runtime)
        self._plan, self._resources = plan, fabric.resources
        self._unpriced, _ = lower_unpriced(
            plan, topology, runtime, calibration, fabric.resources, self._lanes
        )
        self._begin = step_cost(plan, topology, runtime, calibration)

    def __call__(self, constants: NcclConstants) -> Timeline:
        """When ops start and finish, as `simulate` says with these constants."""
        env, (topology, calibration, runtime) = simpy.Environment(), self._at
        fabric = Fabric(
            env, topology, calibration, runtime, lanes=self._lanes, resources=self._resources
        )
        done = fabric.submit(self._plan, self._begin, self._unpriced.priced(constants))
        env.run(until=done)
        timeline = done.value
        assert isinstance(timeline, Timeline)  # noqa: S101 - SimPy knows no type of a value
        return timeline
