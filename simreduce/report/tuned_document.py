"""`simreduce tune` as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simreduce.formats.documents import (
    ANYTHING,
    BYTES,
    COUNT,
    FLAG,
    INTEGER,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    one_of,
    or_null,
)
from simreduce.nccl.tuner import Rule
from simreduce.report.factors import FACTOR_KEYS
from simreduce.report.heads import HEAD_KEYS, document_head
from simreduce.report.measured import MEASURED_KEY
from simreduce.report.tuned import runtime_of
from simreduce.tune.search.setting import Setting
from simreduce.tune.search.spaces import OBJECTIVES, TARGETS
from simreduce.tune.search.tuned import Row, Tuned

_RULE = Record(
    "rule",
    "A choice that NCCL makes for calls of these sizes.",
    Key("from_bytes", BYTES, "The smallest call."),
    Key("to_bytes", or_null(BYTES), "The largest call; null: no limit."),
    Key("algorithm", TEXT, "NCCL's algorithm."),
    Key("protocol", TEXT, "NCCL's protocol."),
    Key("channels", INTEGER, "NCCL's channels; -1: its own choice."),
)
_ROW = Record(
    "row",
    "A setting, simulated.",
    Key("setting", TEXT, "The setting in one line."),
    Key("strategy", TEXT, 'Its strategy; "" of a mode.'),
    Key("rules", list_of(_RULE), "What NCCL is told for each size; empty: its own choice."),
    Key("gpu_indices", list_of(COUNT), "The order of the GPUs of each machine; empty: theirs."),
    Key("method", TEXT, "`ddp`, a sharded method, or a mode of tf_cnn_benchmarks."),
    Key("knobs", map_of(ANYTHING), "What differs from the defaults of a sharded method."),
    Key("cycle_us", or_null(MICROSECONDS), "Horovod's cycle; null of other systems."),
    Key("time_us", MICROSECONDS, "One all-reduce, or a step."),
    Key(
        "told_apart",
        or_null(FLAG),
        "Whether the best is surely faster; null for the best, or if nothing is known of errors.",
    ),
    Key("needed_bytes", or_null(BYTES), "What a GPU holds at most; null if it is not known."),
    Key("fits", or_null(FLAG), "Whether it fits a GPU; null if that is not known."),
)
TUNE = Document(
    "tune",
    "`simreduce tune --json`: the best setting of a system, and those near it.",
    *HEAD_KEYS,
    Key("target", one_of(*TARGETS), "The system."),
    Key("objective", one_of(*OBJECTIVES), "The time of one all-reduce, or of a training step."),
    Key("best", _ROW, "The fastest setting."),
    Key("default", _ROW, "What runs if nothing is set."),
    Key("speedup", RATIO, "How many times as fast as the default the best is."),
    Key(
        "told_apart",
        or_null(FLAG),
        "Whether the best is surely faster than the default; null if nothing is known of errors.",
    ),
    *FACTOR_KEYS,
    Key("points", COUNT, "Settings of the space."),
    Key("simulated", COUNT, "Settings that were simulated."),
    Key("calls", COUNT, "Single calls that were simulated for bounds."),
    Key("complete", FLAG, "Whether the best is proven to be the best of the space."),
    Key("stopped", FLAG, "Whether the command was stopped."),
    Key("composed", FLAG, "Whether some times are single calls put together."),
    Key("bound_us", MICROSECONDS, "No setting of the space takes less."),
    Key("floor_us", MICROSECONDS, "No all-reduce of the machine takes less."),
    Key(
        "flat",
        or_null(
            Record(
                "flat",
                "Sizes of buckets around the best that are nearly as good.",
                Key("from_bytes", BYTES, "The smallest."),
                Key("to_bytes", BYTES, "The largest."),
            )
        ),
        "Where the size of buckets hardly matters; null if that is not known.",
    ),
    Key(
        "curve",
        list_of(
            Record(
                "place",
                "A size of buckets. A time that is neither exact nor estimated is a lower bound.",
                Key("bucket_bytes", BYTES, "The size."),
                Key("time_us", MICROSECONDS, "The time with it."),
                Key("exact", FLAG, "Whether the time was simulated."),
                Key("estimated", FLAG, "Whether it lies between simulated calls."),
            )
        ),
        "The time over the size of buckets; empty where there are none.",
    ),
    Key("rows", list_of(_ROW), "Settings that were simulated, fastest first."),
    Key("worth_measuring", list_of(TEXT), "Settings that may be faster than the best."),
    Key("unfit", COUNT, "Settings of the space that do not fit a GPU."),
    Key("files", map_of(TEXT), "What to paste or save, by the name of the file."),
    MEASURED_KEY,
)


def tuned_document(found: Tuned, files: Mapping[str, str]) -> dict[str, Any]:
    """The document of `--json`: `TUNE`."""
    scenario = found.scenario
    runtimes = [runtime_of(scenario, found.best.setting)]
    flat = found.flat
    return {
        **document_head(TUNE, scenario, runtimes),
        "target": found.target,
        "objective": found.objective,
        "best": _row_keys(found.best, found),
        "default": _row_keys(found.default, found),
        "speedup": found.speedup,
        "told_apart": found.apart(found.default),
        "factor": found.sureness.factor if found.sureness else None,
        "ratio_factor": found.sureness.ratio_factor if found.sureness else None,
        "points": found.points,
        "simulated": len(found.rows),
        "calls": found.calls,
        "complete": found.complete,
        "stopped": found.stopped,
        "composed": found.composed,
        "bound_us": found.bound * 1e6,
        "floor_us": found.floor * 1e6,
        "flat": None if flat is None else {"from_bytes": flat[0], "to_bytes": flat[1]},
        "curve": [
            {
                "bucket_bytes": p.nbytes,
                "time_us": p.seconds * 1e6,
                "exact": p.exact,
                "estimated": p.estimated,
            }
            for p in found.curve
        ],
        "rows": [_row_keys(row, found) for row in found.rows],
        "worth_measuring": [row.setting.label for row in found.worth_measuring()],
        "unfit": found.unfit,
        "files": dict(files),
    }


def _row_keys(row: Row, found: Tuned) -> dict[str, Any]:
    return {
        **_setting_keys(row.setting),
        "time_us": row.seconds * 1e6,
        "told_apart": None if row == found.best else found.apart(row),
        "needed_bytes": row.fit.needed if row.fit else None,
        "fits": row.fit.fits if row.fit else None,
    }


def _setting_keys(setting: Setting) -> dict[str, Any]:
    return {
        "setting": setting.label,
        "strategy": setting.strategy,
        "rules": [_rule_keys(rule) for rule in setting.rules],
        "gpu_indices": list(setting.order),
        "method": setting.mode or setting.method,
        "knobs": setting.knobs,
        "cycle_us": None if setting.cycle is None else setting.cycle * 1e6,
    }


def _rule_keys(rule: Rule) -> dict[str, Any]:
    return {
        "from_bytes": rule.least,
        "to_bytes": rule.most,
        "algorithm": rule.algorithm,
        "protocol": rule.protocol,
        "channels": rule.channels,
    }
