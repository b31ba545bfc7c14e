"""Times of real runs: taken in turns, kept as they come, and what they are worth.

`turns` takes them, `statistics` has the pure functions, `record` the file, `provenance` what it all
ran on.
"""

from simreduce_validate.measuring.record import (
    Forecast,
    RecordedResult,
    ResultWriter,
    open_record,
    overwrite_fault,
    read_record,
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
from simreduce_validate.measuring.turns import Timed, time_in_rounds

__all__ = [
    "Forecast",
    "Interval",
    "Noise",
    "RecordedResult",
    "ResultWriter",
    "Timed",
    "common_factor",
    "median_interval",
    "noise",
    "open_record",
    "outliers",
    "over_fastest",
    "overwrite_fault",
    "ratio_bounds",
    "ratio_interval",
    "read_record",
    "time_in_rounds",
]
