"""The modes that all-reduce the gradients, as strategies. All of them sum."""

from __future__ import annotations

from simreduce.errors import StrategyError
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.training.variable_update.flags import Flags


def replicated(layout: Layout, flags: Flags) -> Strategy:
    """Return the strategy of one machine.

    It uses the spec if there is one (a single range), else hierarchical copy, else plain copies.
    """
    if len(layout.tasks) > 1:
        raise StrategyError(
            "replicated works on one machine;"
            " distributed_replicated and distributed_all_reduce on several"
        )
    if flags.all_reduce_spec:
        strategy = _strategy(flags, flags.all_reduce_spec)
        if len(strategy.ranges) > 1:
            raise StrategyError(
                f"replicated takes a spec of one range, not {flags.all_reduce_spec!r}"
            )
    elif flags.hierarchical_copy:
        names = {"dgx1": "hierarchical_copy", "gcp_v100": "hierarchical_copy_gcp_v100"}
        if flags.network_topology not in names:
            raise StrategyError(
                f"network_topology={flags.network_topology}: one of {', '.join(names)}"
            )
        strategy = _strategy(flags, names[flags.network_topology])
    else:
        strategy = _strategy(flags, "copy_to_gpus" if flags.on_gpu() else "copy_to_cpu")
    return strategy


def distributed_all_reduce(layout: Layout, flags: Flags) -> Strategy:
    """One graph over all workers; any number of ranges, but not plain nccl on several workers."""
    if not flags.all_reduce_spec:
        raise StrategyError("distributed_all_reduce needs an all_reduce_spec")
    if len(layout.tasks) > 1 and flags.all_reduce_spec == "nccl":
        raise StrategyError(
            "nccl alone works on one machine; nccl/xring, nccl/rechd and nccl/pscpu on several"
        )
    return _strategy(flags, flags.all_reduce_spec)


def collective_all_reduce(layout: Layout, flags: Flags) -> Strategy:  # noqa: ARG001 - modes share a signature
    """The runtime's collectives; one range, no limit."""
    strategy = _strategy(flags, flags.all_reduce_spec or "collective")
    if [r.algorithm for r in strategy.ranges] != ["collective"]:
        raise StrategyError(
            "collective_all_reduce takes the spec collective or collective#2,"
            f" not {strategy.spec!r}"
        )
    return strategy


def horovod(layout: Layout, flags: Flags) -> Strategy:  # noqa: ARG001 - modes share a signature
    """One process per GPU; Horovod reduces every gradient, or fused buffer, over all."""
    if flags.all_reduce_spec:
        raise StrategyError("horovod takes no all_reduce_spec")
    return _strategy(flags, "nccl")


def _strategy(flags: Flags, spec: str) -> Strategy:
    return parse_strategy(f"{spec}+{flags.packing}" if flags.packing else spec)
