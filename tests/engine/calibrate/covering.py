"""How often intervals cover the errors of machines that they do not know."""

from __future__ import annotations

import numpy as np

from simreduce.engine.calibrate.sure import Spread


def coverage(found):
    """The part of each row's errors that lies within intervals made without its machine."""
    shown = []
    for machine in dict.fromkeys(row.machine for row in found):
        others = Spread([row for row in found if row.machine != machine])
        for row in found:
            if row.machine == machine:
                low, high = others.ends(row.collective, row.link, row.size)
                ratios = np.exp(-np.array(row.errors))
                inside = (low <= ratios) & (ratios <= high)
                shown.append((row, float(inside.mean())))
    return shown
