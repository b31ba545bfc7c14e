"""Micro-plans that are timed again where a calibration is tried: by what factor they now take
longer, all that it predicts may.

Any two devices of the kind that it was learnt on can do them, however many there were and are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from simreduce.engine.calibrate import CHAINS, COPIES, SUMS, TRANSFERS
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
"""A control may take this many times the slowest candidate, or these seconds, which cost little."""

_BRIEF = 16
"""By how many times a control may be shorter than the candidate in the middle: it would be of a
machine's other minutes and caches, and its noise would be in the factor of theirs.
"""

_LARGE = 16
"""Times the candidates' tensor, beyond which a control is of bytes where they are of fixed costs.
"""


def control_plans(devices: Devices, keys: Iterable[Key]) -> dict[Key, Micro]:
    """The controls of a calibration as micro-plans on these devices.

    A control sends a value back and forth between two devices, or adds eight times on one. Returns
    none if the calibration was learnt on devices of another kind.
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
    """The devices that a value visits, by kind of control."""
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
    """Up to three controls that took about as long as candidates of `nbytes` are predicted to take.

    Their values may not be much larger, so that the same costs, fixed or by the byte, fill the time
    of both.
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
