"""Times of real runs: taken in turns, kept as they come, and what they are worth.

`turns` takes them, `statistics` has the pure functions, `record` the file, `provenance` what it all
ran on.
"""

from simreduce_validate.measuring.record import (
    Forecast,
    Record,
    Recorded,
    already_there,
    read_record,
    recording,
)
from simreduce_validate.measuring.statistics import (
    Interval,
    Noise,
    common_factor,
    median_interval,
    noise,
    outliers,
    over_fastest,
    ratio_bounds,
    ratio_interval,
)
from simreduce_validate.measuring.turns import Timed, in_rounds

__all__ = [
    "Forecast",
    "Interval",
    "Noise",
    "Record",
    "Recorded",
    "Timed",
    "already_there",
    "common_factor",
    "in_rounds",
    "median_interval",
    "noise",
    "outliers",
    "over_fastest",
    "ratio_bounds",
    "ratio_interval",
    "read_record",
    "recording",
]
