"""The flags of tf_cnn_benchmarks on moving gradients, with their names and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simreduce.errors import StrategyError
from simreduce.planners.layouts import Layout


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of tf_cnn_benchmarks that decide a variable-update mode.

    `ps_tasks` are the tasks whose CPUs are parameter servers (tf_cnn_benchmarks has jobs of their
    own, often on the same hosts); empty for all. `packing` is what follows the spec in a strategy,
    such as `packs=8`.
    """

    local_parameter_device: str = "gpu"
    all_reduce_spec: str = ""
    hierarchical_copy: bool = False
    network_topology: str = "dgx1"
    packing: str = ""
    ps_tasks: Sequence[int] = field(default=())
    faithful: bool = False

    def on_gpu(self) -> bool:
        """Whether variables are kept on GPUs."""
        if self.local_parameter_device not in ("cpu", "gpu"):
            raise StrategyError(f"local_parameter_device={self.local_parameter_device}: cpu or gpu")
        return self.local_parameter_device == "gpu"

    def servers(self, layout: Layout) -> list[int]:
        """The devices of the parameter servers."""
        hosts = layout.host_devices("parameter servers")
        tasks = self.ps_tasks or range(len(hosts))
        missing = [t for t in tasks if not 0 <= t < len(hosts)]
        if missing:
            raise StrategyError(f"ps_tasks {missing}: the tasks are 0 to {len(hosts) - 1}")
        return [hosts[t] for t in tasks]
