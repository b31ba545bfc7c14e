"""TensorFlow's hierarchical copy: two groups of GPUs, joined by one pair of them.

Each tensor has a main device and a secondary one in the other group. Each sums its own group, the
main adds the two sums, and the total goes back the way it came: 2(n-1) transfers. The pairs are
made for a machine: the DGX-1 (TensorFlow 1.14 cross_device_utils.py, for any number of devices) or
GCP's machine with 8 V100 (tf_cnn_benchmarks batch_allreduce.py, for 8).
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value
from simreduce.planners.algorithms.alike import plan_each
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.layouts import Layout

GCP_V100 = ((0, 5), (2, 7), (5, 0), (7, 2))
"""(main, secondary) of tensors 0 to 3, then again: 0-5 and 2-7 are the only links between the
quads.
"""


def dgx1_pair(index: int, n: int, *, faithful: bool = False) -> tuple[int, int]:
    """(main, secondary) of tensor `index` among n devices: opposite places of the groups [0, n//2)
    and [n//2, n).

    Upstream's secondary is n//2 further round, which is the same for even n; for odd n it may be in
    the main's own group, or be the device that no group has.
    """
    main, half = index % n, n // 2
    if faithful or main < half:
        return main, (main + half) % n
    return main, (main - half) % half


def hierarchical_copy(
    b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options
) -> Results:
    """Tensor i has main i mod n. `faithful` leaves the last of an odd number of devices out of the
    sum.
    """
    n, faithful = len(layout.ranks), options.faithful
    if n < 2:
        raise StrategyError("needs 2 devices or more")
    pairs = [dgx1_pair(i, n, faithful=faithful) for i in range(n)]
    end = n // 2 * 2 if faithful else n
    return plan_each(b, tensors, lambda tensor, i: _one(b, tensor, *pairs[i], end), n)


def hierarchical_copy_gcp_v100(
    b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options
) -> Results:
    """Tensor i has the pair i mod 4 of `GCP_V100`."""
    n = len(layout.ranks)
    if n != 8:
        raise StrategyError(f"needs exactly 8 devices, not {n}")
    pairs = GCP_V100
    return plan_each(b, tensors, lambda tensor, i: _one(b, tensor, *pairs[i], n), len(pairs))


def _one(
    b: PlanBuilder, tensor: Sequence[Value], main: int, secondary: int, end: int
) -> list[Value]:
    """Sum the ranks [0, end) in two groups, and hand the total out to all ranks."""
    half = len(tensor) // 2
    near, far = tensor[:half], tensor[half:end]
    if main >= half:
        near, far = far, near
    near_sum = b.add_on(tensor[main].device, near)
    far_sum = b.add_on(tensor[secondary].device, far)
    total = b.add_on(tensor[main].device, [near_sum, far_sum])
    mirror = b.copy(total, tensor[secondary].device)
    if (main < half) == (secondary < half):
        total = b.hold(
            total, ()
        )  # what is handed out is an identity, so that the secondary gets it once more
    return [
        b.copy(total if (rank < half) == (main < half) else mirror, value.device)
        for rank, value in enumerate(tensor)
    ]
