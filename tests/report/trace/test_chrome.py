"""Traces keep the rules of the trace-event format, and their times are the result's."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings

import simreduce as sr
from simreduce.engine import IDEAL, TENSORFLOW, Calibration, Processor
from simreduce.plan import Kind
from simreduce.report.trace import recording_events, recording_text
from simreduce.testing import cable, copy_plan, machine, node, plan_of
from simreduce.testing.strategies import either_scenes
from tests.simulating import record
from tests.thorough import examples


def check_format(events):
    """What viewers rely on. Returns the slices: (thread, name, from, to, args)."""
    names = [e for e in events if e["ph"] == "M"]
    rest = events[len(names) :]
    assert names == events[: len(names)]
    processes = {e["pid"] for e in names if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in names if e["name"] == "thread_name"}
    assert len(threads) == len({tid for _, tid in threads})
    assert {pid for pid, _ in threads} <= processes
    assert {e["name"] for e in names} <= {
        "process_name",
        "process_sort_index",
        "thread_name",
        "thread_sort_index",
    }

    times = [e["ts"] for e in rest]
    assert times == sorted(times)
    assert all(ts >= 0 for ts in times)
    open_slices, slices, sent, used = {}, [], {}, {}
    for e in rest:
        where = (e["pid"], e["tid"])
        if e["ph"] == "C":
            assert e["pid"] in processes
            assert all(np.isfinite(value) and value >= 0 for value in e["args"].values())
            continue
        assert where in threads
        if e["ph"] == "B":
            assert where not in open_slices  # slices of a thread never overlap
            open_slices[where] = e
        elif e["ph"] == "E":
            begin = open_slices.pop(where)
            slices.append((threads[where], begin["name"], begin["ts"], e["ts"], begin["args"]))
        else:
            arrows = sent if e["ph"] == "s" else used
            assert e["id"] not in arrows
            assert (
                open_slices[where]["ts"] == e["ts"]
            )  # an arrow is bound to the slice that just began
            assert e["ph"] in ("s", "f")
            assert e.get("bp") == ("e" if e["ph"] == "f" else None)
            assert e["ph"] == "s" or sent[e["id"]]["ts"] < e["ts"]
            arrows[e["id"]] = e
    assert not open_slices
    assert sent.keys() == used.keys()
    return slices


def of_devices(slices):
    return [s for s in slices if "ready_us" in s[4]]


@given(either_scenes)
@settings(max_examples=examples(30))
def test_every_op_is_there_at_its_time(scene):
    """Each but the INPUTs, once on its device, from its start to its finish, to the bit."""
    recording = record(scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready)
    slices = of_devices(check_format(list(recording_events(recording, scene.topology))))
    result = recording.result
    ops = np.flatnonzero(scene.plan.kind != Kind.INPUT).tolist()

    assert {op: (result.start[op] * 1e6, result.finish[op] * 1e6) for op in ops} == {
        args["op"]: (begin, end) for _, _, begin, end, args in slices
    }
    assert len(ops) == len(slices)
    assert max([end for *_, end, _ in slices], default=0.0) == pytest.approx(
        max((result.finish[op] * 1e6 for op in ops), default=0.0), rel=0, abs=0
    )


@given(either_scenes)
@settings(max_examples=examples(30))
def test_links_and_lanes_show_what_used_them(scene):
    """A flow on every resource that it uses, an op on every lane that it holds."""
    recording = record(scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready)
    lowered = recording.lowered
    found = Counter()
    for thread, _, _, _, args in check_format(list(recording_events(recording, scene.topology))):
        if "ready_us" not in args:
            found[thread.split(" (")[0], args["op"]] += 1
    expected = Counter()
    for op in range(len(scene.plan)):
        uses = lowered.by_op.uses[lowered.by_op.use_start[op] : lowered.by_op.use_start[op + 1]]
        if lowered.amount[op] > 0:
            expected.update({(recording.resources.names[r], op) for r in uses})
        lanes = lowered.by_op.lanes[lowered.by_op.lane_start[op] : lowered.by_op.lane_start[op + 1]]
        expected.update((lowered.lane_names[lane], op) for lane in lanes)

    assert expected == found


@given(either_scenes)
@settings(max_examples=examples(250))
def test_a_lane_has_one_thread(scene):
    """It serves one op at a time, while ops without it may overlap with those in the row of their
    device, which has the same name.
    """
    recording = record(scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready)
    events = list(recording_events(recording, scene.topology))
    named = [e for e in events if e["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    threads = [
        e["args"]["name"]
        for e in named
        if e["name"] == "thread_name" and processes[e["pid"]] == "lanes"
    ]

    assert not {f"{lane} (2)" for lane in recording.lowered.lane_names} & set(threads)


def test_two_copies_at_once():
    """What overlaps has threads of its own; arrows lead to what uses the bytes; counters to what
    links carry.
    """
    topology = machine(cable("gpu0", "gpu1", latency=1.0), cable("gpu0", "gpu2"))

    def write(b):
        first = b.copy(b.input(0, 0, 100), 1)
        b.copy(b.input(0, 100, 200), 2)
        b.output(first)

    recording = record(plan_of(topology, write), topology, IDEAL)
    events = list(recording_events(recording, topology))
    slices = [s[:4] for s in check_format(events)]

    assert set(slices) == {
        ("gpu0 copies out (2)", "to gpu1", 0.0, 5e6),
        ("gpu0 copies out", "to gpu2", 0.0, 4e6),
        ("gpu0>gpu1 wire", "gpu0 to gpu1", 1e6, 5e6),
        ("gpu0>gpu2 wire", "gpu0 to gpu2", 0.0, 4e6),
        ("gpu1 compute", "output", 5e6, 5e6),
    }
    assert [(e["ph"], e["id"], e["ts"]) for e in events if e["ph"] in "sf"] == [
        ("s", 1, 0.0),
        ("f", 1, 5e6),
    ]
    assert [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"] == [
        ("gpu0>gpu2 wire", 0.0, {"GB/s": 1e-7}),
        ("gpu0>gpu1 wire", 1e6, {"GB/s": 1e-7}),
        ("gpu0>gpu2 wire", 4e6, {"GB/s": 0.0}),
        ("gpu0>gpu1 wire", 5e6, {"GB/s": 0.0}),
    ]


def test_cores_are_told_in_cores_and_work_is_no_bandwidth():
    """An INPUT of 2 s of work moves nothing; its copy moves 400 bytes in 2 s of work and 1 s of
    bytes.
    """
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    cpu = Processor(rates={"copy": 400.0})
    calibration = Calibration("here", dispatch={"input": 2.0, "copy": 2.0}, cpu=cpu)
    recording = record(copy_plan(topology, (0, 1)), topology, TENSORFLOW, calibration)
    events = list(recording_events(recording, topology))
    slices = [e["args"] for e in events if e["ph"] == "B"]
    rates = {op: {s.get("gb_per_s") for s in slices if s["op"] == op} for op in (0, 1)}

    [rate] = rates[1]

    assert {None} == rates[0]
    assert rate == pytest.approx(400 / 3 / 1e9)
    counted = [
        (e["ts"], e["args"]) for e in events if e["ph"] == "C" and e["name"].endswith("cores")
    ]
    assert [(0.0, {"cores": pytest.approx(1.0)}), (5e6, {"cores": 0.0})] == counted


def test_a_machine_is_a_process():
    topology = sr.load_topology("dgx1vx2")
    plan = sr.compile("xring", sr.load_workload("bytes:1M"), sr.layout(topology))
    recording = record(plan, topology)
    events = list(recording_events(recording, topology))
    threads = defaultdict(list)
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    for e in events:
        if e.get("name") == "thread_name":
            threads[names[e["pid"]]].append(e["args"]["name"])

    assert list(names.values()) == ["machine 0", "machine 1", "links and memories", "lanes"]
    assert threads["machine 1"][:2] == ["n1.gpu0 copies out", "n1.gpu0 compute"]
    check_format(events)


@pytest.mark.parametrize("spec", ["nccl", "hierarchical_copy+packs=4", "psgpu#8", "pscpu"])
def test_eight_gpus(spec):
    """The text is JSON; its last moment is the result's; every copy has an arrow."""
    topology = sr.load_topology("dgx1v")
    plan = sr.compile(spec, sr.load_workload("bytes:4M"), sr.layout(topology))
    recording = record(plan, topology)
    document = json.loads("".join(recording_text(recording, topology, {"strategy": spec})))
    slices = check_format(document["traceEvents"])

    assert document["otherData"]["time_us"] == recording.result.seconds * 1e6
    assert document["otherData"]["strategy"] == spec
    assert max(end for _, _, _, end, _ in slices) == recording.result.seconds * 1e6
    assert plan.transfers == sum(e["ph"] == "s" for e in document["traceEvents"])


def test_bytes_and_waits_are_told():
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2"))
    recording = record(copy_plan(topology, (0, 1), (0, 2)), topology)
    first, second = (
        s[4] for s in of_devices(check_format(list(recording_events(recording, topology))))
    )

    assert first == {
        "op": 1,
        "bytes": 400,
        "gb_per_s": 1e-7,
        "after": 0,
        "ready_us": 0.0,
        "waited_us": 0.0,
        "dispatch_us": 0.0,
        "latency_us": 0.0,
    }
    assert second["waited_us"] == 4e6
