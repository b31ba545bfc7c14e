"""What `--measure` adds to a document: `simreduce_validate.remeasure` makes it."""

from __future__ import annotations

from simreduce.formats.documents import (
    ANYTHING,
    COUNT,
    MICROSECONDS,
    TEXT,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)

MEASURED_KEY = Key(
    "measured",
    or_null(
        list_of(
            Record(
                "measured",
                "A strategy, timed on real devices.",
                Key("place", COUNT, "Its place by prediction, from 1."),
                Key("strategy", TEXT, "The strategy."),
                Key(
                    "predicted_time_us",
                    or_null(MICROSECONDS),
                    "Predicted for the measured devices; null without a prediction.",
                ),
                Key("time_us", MICROSECONDS, "The median."),
                Key("low_us", MICROSECONDS, "The lower end of the median's 95 % interval."),
                Key("high_us", MICROSECONDS, "The upper end of that interval."),
                Key(
                    "place_measured",
                    or_null(COUNT),
                    "Its place by measured time, from 1; null with faults.",
                ),
                Key("faults", list_of(TEXT), "What was wrong with the results."),
            )
        )
    ),
    "The strategies that `--measure` timed; null if it failed.",
    optional=True,
)
MEASURED_KEYS = (
    MEASURED_KEY,
    Key(
        "measured_on",
        map_of(ANYTHING),
        "Hardware, versions and settings, as `provenance` of `validate`.",
        optional=True,
    ),
    Key(
        "not_told_apart",
        list_of(TEXT),
        "The fastest measured strategy, and those whose intervals overlap with its own.",
        optional=True,
    ),
)
