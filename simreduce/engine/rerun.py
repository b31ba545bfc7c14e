"""A plan whose time is asked for often, each time with other constants of NCCL."""

from __future__ import annotations

from simreduce.engine.calibration import Calibration, NcclConstants
from simreduce.engine.lowering.lower import lower_unpriced
from simreduce.engine.runtime import Runtime
from simreduce.engine.simulation import Simulator, step_cost
from simreduce.engine.submission import Timeline
from simreduce.plan import Plan
from simreduce.topology import Folded, Topology


class Rerun:
    """A plan on a machine, timed with any constants of NCCL.

    Lowers the plan once, without the constants. Not for calibrations of CPU devices.
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology | Folded,
        runtime: Runtime,
        calibration: Calibration,
    ) -> None:
        self._plan, self._at = plan, Simulator(topology, runtime, calibration)
        self._lanes: dict[str, int] = {}
        self._unpriced, _ = lower_unpriced(
            plan, topology, runtime, calibration, self._at.resources, self._lanes
        )
        self._begin = step_cost(plan, topology, runtime, calibration)

    def __call__(self, constants: NcclConstants) -> Timeline:
        """When ops start and finish, as `simulate` says with these constants."""
        fabric = self._at.fabric(self._plan, lanes=self._lanes)
        done = fabric.submit(self._plan, self._begin, self._unpriced.priced(constants))
        fabric.env.run(until=done)
        timeline = done.value
        assert isinstance(timeline, Timeline)  # noqa: S101 - SimPy knows no type of a value
        return timeline
