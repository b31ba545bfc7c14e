"""Micro-plans that are timed again where a calibration is tried: by what factor they now take
longer, all that it predicts may.

Any two devices of the kind that it was learnt on can do them, however many there were and are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from simreduce.calibrate import CHAINS, COPIES, SUMS, TRANSFERS
from simreduce_validate.calibrating.micro import Micro, flight, sums, to_and_fro
from simreduce_validate.devices import Devices
from simreduce_validate.running import placement

Key = tuple[str, int]
"""What a control does, and the bytes of its values."""

WITHIN, BETWEEN = {COPIES: 4, CHAINS: 48}, {TRANSFERS: 3, CHAINS: 11}
"""Hops between two devices of one process, and from one process to another. `CHAINS` are as long as
reductions have steps; between processes all end elsewhere than the step begins, as reductions do.
"""

_FEW = 3
"""Controls for the candidates of one size."""

_LONG, _SHORT = 2.0, 0.01
"""Times the slowest candidate, beyond which a control costs more than it tells; and seconds that
cost little beside whatever.
"""

_BRIEF = 16
"""By how many times a control may be shorter than the candidate in the middle: it would be of a
machine's other minutes and caches, and its noise would be in the factor of theirs.
"""

_LARGE = 16
"""Times the candidates' tensor, beyond which a control is of bytes where they are of fixed costs.
"""


def control_plans(devices: Devices, keys: Iterable[Key]) -> dict[Key, Micro]:
    """The controls of a calibration on these devices: a value that goes back and forth between two,
    or eight sums one after another on the first. None if it was learnt on others, between which
    there is something else to do.
    """
    names, paths, wanted = devices.layout.devices, _paths(devices), list(keys)
    if not all(kind in paths for kind, _ in wanted):
        return {}
    return {
        (kind, nbytes): sums(names, paths[kind], 8, nbytes)
        if kind == SUMS
        else flight(names, paths[kind], nbytes)
        for kind, nbytes in wanted
    }


def _paths(devices: Devices) -> dict[str, list[int]]:
    """Which devices a value visits, by what a control does."""
    if not devices.stage.on_cpus or devices.layout.n < 2:
        return {}
    if devices.stage.one_process:
        other, hops = 1, WITHIN
    else:
        process = placement.numbers(devices.stage.place)[: devices.layout.n]
        found = next((rank for rank, number in enumerate(process) if number != process[0]), None)
        if found is None:
            return {}
        other, hops = found, BETWEEN
    return {SUMS: [0], **{kind: to_and_fro(0, other, many) for kind, many in hops.items()}}


def choose_controls(
    controls: Mapping[Key, float], nbytes: int, predicted: Sequence[float]
) -> list[Key]:
    """Those few controls that took about as long as candidates of so many bytes are predicted to
    take, and whose values are not much larger: what fills their time, be it fixed costs or bytes,
    slows both down. Fewer, or none, if there are no such.
    """
    known = [seconds for seconds in predicted if math.isfinite(seconds)]
    if not known:
        return []
    middle, most = sorted(known)[len(known) // 2], max(_LONG * max(known), _SHORT)
    near = [
        key
        for key, then in controls.items()
        if middle / _BRIEF <= then <= most and key[1] <= _LARGE * nbytes
    ]
    return sorted(near, key=lambda key: abs(math.log(controls[key] / middle)))[:_FEW]
