"""Published timings beside predictions, as a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simreduce import units
from simreduce.accuracy.predict import Point
from simreduce.plots import Compared, Plot, draw_multiples


def draw_points(points: Sequence[Point], calibration: str) -> Plot:
    """Busbw over size: a panel for each machine, and a colour for each table; `calibration` names
    the constants of the predictions.
    """
    panels: defaultdict[str, defaultdict[str, list[Compared]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for point in points:
        scale = point.nbytes * point.busbw_factor
        series = f"{point.table.collective}, {units.plural(point.ranks, 'GPU')}"
        panels[point.machine][series].append(
            Compared(
                point.nbytes,
                scale / point.seconds,
                None if point.predicted is None else scale / point.predicted,
                scale / point.high if point.high else None,
                scale / point.low if point.low else None,
            )
        )
    return draw_multiples(
        panels,
        "Busbw of NCCL: published (marks), predicted (lines), 80 % intervals (bands)",
        f"calibration {calibration}",
    )
