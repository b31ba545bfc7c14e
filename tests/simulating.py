"""Simulations of one plan on a machine, in one call."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np

import simreduce as sr
from simreduce.engine import (
    CALM,
    NOMINAL,
    TENSORFLOW,
    Curve,
    Floors,
    Result,
    Simulator,
    Use,
    runtime_named,
)
from simreduce.engine.result import CriticalPath
from simreduce.files.formats.syntax import read_json

_COLUMNS = {
    "kind": np.int8, "source": np.int32, "device": np.int32, "nbytes": np.int64,
    "ready": np.float64, "start": np.float64, "finish": np.float64, "blame": np.int32,
}  # fmt: skip
_PATH_DTYPES = {"Ints": np.int64, "Floats": np.float64}


def simulator(topology, runtime=TENSORFLOW, calibration=NOMINAL, disturbance=CALM):
    known = runtime_named(runtime) if isinstance(runtime, str) else runtime
    return Simulator(topology, known, calibration, disturbance)


def simulate(plan, topology, runtime=TENSORFLOW, calibration=NOMINAL, ready=0.0, disturbance=CALM):
    return simulator(topology, runtime, calibration, disturbance).simulate(plan, ready)


def record(plan, topology, runtime=TENSORFLOW, calibration=NOMINAL, ready=0.0, disturbance=CALM):
    return simulator(topology, runtime, calibration, disturbance).record(plan, ready)


def read_result(text):
    """The inverse of `Result.to_json`."""
    document = read_json(text, "result", most=len(text), finite=False)
    document["digested"] = document.pop("plan_digest")
    for name, dtype in _COLUMNS.items():
        document[name] = np.array(document[name], dtype=dtype)
    if document["begun"] is not None:
        document["begun"] = np.array(document["begun"], dtype=np.float64)  # null is NaN
    document["floors"] = Floors(**document["floors"])
    document["links"] = tuple(Use(**u) for u in document["links"])
    document["lanes"] = tuple(Use(**u) for u in document["lanes"])
    document["devices"] = tuple(document["devices"])
    path = document["path"]
    columns = {
        f.name: np.array(path[f.name], dtype=_PATH_DTYPES[str(f.type)])
        for f in fields(CriticalPath)
        if f.name != "names"
    }
    document["path"] = CriticalPath(**columns, names=tuple(path["names"]))
    return Result(**document)


def bits(timeline):
    """Equal for timelines that are equal bit for bit."""
    columns = (timeline.ready, timeline.start, timeline.finish, timeline.blame)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def xring_on_a_dgx1():
    """A plan and the machine that it is for."""
    topology = sr.load_topology("dgx1v")
    return sr.compile("xring#2", sr.load_workload("bytes:1M"), sr.layout(topology)), topology


def lane_curves(recording):
    """Of every lane that an op held for a while, in the order of `Lowered.lane_names`."""
    lowered = recording.lowered
    since, until = recording.lane_times
    lanes = lowered.by_op.lanes
    order = np.lexsort((until, since, lanes))
    curves = []
    used, first = np.unique(lanes[order], return_index=True)
    for lane, rows in zip(used.tolist(), np.split(order, first[1:]), strict=False):
        begin, end = since[rows], until[rows]
        end[:-1] = np.minimum(end[:-1], begin[1:])  # two computations of one instant
        some = end > begin
        begin, end = begin[some], end[some]
        gap = np.concatenate([begin[1:] > end[:-1], [True]])[: len(end)]
        joined = np.concatenate([[True], gap[:-1]])[: len(begin)]
        if len(begin):
            time = np.stack([begin[joined], end[gap]], axis=1).reshape(-1)
            curves.append(
                Curve(lowered.lane_names[lane], 1.0, time, np.tile([1.0, 0.0], len(time) // 2))
            )
    return tuple(curves)
