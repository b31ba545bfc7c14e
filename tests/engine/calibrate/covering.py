"""How often intervals cover the errors of machines that they do not know."""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from simreduce.engine.calibrate.intervals import Spread


def coverage(found, by="machine", known=None):
    """The part of each row's errors that lies within intervals made without its machine, or
    whatever else `by` names; of the rows `known`, if these are others.
    """
    shown, key = [], attrgetter(by)
    for name in dict.fromkeys(map(key, found)):
        others = Spread([row for row in known or found if key(row) != name])
        for row in found:
            if key(row) == name:
                low, high = others.ends(row.collective, row.link, row.size, row.misfit)
                ratios = np.exp(-np.array(row.errors))
                inside = (low <= ratios) & (ratios <= high)
                shown.append((row, float(inside.mean())))
    return shown


def part_inside(covered):
    """The part of all errors that lies within their intervals."""
    return np.average([part for _, part in covered], weights=[len(r.errors) for r, _ in covered])
