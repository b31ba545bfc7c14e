"""What a change saves is what another simulation says."""

from __future__ import annotations

from collections import Counter

import pytest

import simreduce as sr
from simreduce.engine import CHANNELS, IDEAL, TENSORFLOW, Calibration, LinkConstants, Processor
from simreduce.engine.setup import Setup
from simreduce.planners.strategy import parse_strategy
from simreduce.report.explain import Explained, explanation_text
from simreduce.study.tune.sizes import tensor
from simreduce.study.tune.whatif import changes, lane_kind, savings
from simreduce.testing import cable, copy_plan, machine, node, pair, plan_of
from simreduce.topology import load_topology
from tests.simulating import record, simulate

COSTS = Calibration("costs", dispatch={"copy": 0.5, "add": 0.25})


def found(plan, topology, runtime=TENSORFLOW, calibration=COSTS):
    recording = record(plan, topology, runtime, calibration)
    return {
        (s.change.resource, s.change.figure): s
        for s in savings(recording, Setup(topology, runtime, calibration))
    }


def test_one_copy():
    """4 s of bytes, 1 s of latency, half a second of dispatch."""
    topology = pair(latency=1.0)
    saved = {key: s.saved for key, s in found(copy_plan(topology, (0, 1)), topology).items()}

    assert saved == pytest.approx(
        {
            ("wire", "bandwidth"): 4.0 - 4.0 / 1.1,
            ("wire", "lanes"): 2.0,
            ("wire", "latency"): 0.1,
            ("copy", "cost"): 0.05,
            ("device-to-device", "queue"): 0.0,
        }
    )


def test_what_the_host_issues_costs_and_queues():
    """Two copies that go different ways, half a second each: without a queue, both at once."""
    topology = machine(cable("gpu0", "gpu1"), cable("gpu2", "gpu1"))
    plan = copy_plan(topology, (0, 1), (2, 1))
    issues = Calibration("issues", issue={"copy": 0.5})
    saved = {key: s.saved for key, s in found(plan, topology, calibration=issues).items()}

    assert 0.1 == pytest.approx(saved["copy", "cost"])
    assert 0.5 == pytest.approx(saved["host", "queue"])


def test_what_costs_nothing_cannot_cost_less():
    topology = pair(latency=1.0)
    free = Calibration("free", dispatch={"copy": 0.0, "add": 0.25}, issue={"copy": 0.0})
    assert ("copy", "cost") not in found(copy_plan(topology, (0, 1)), topology, calibration=free)


def test_what_saves_most_comes_first():
    topology = pair(latency=1.0)
    plan = copy_plan(topology, (0, 1))
    recording = record(plan, topology, TENSORFLOW, COSTS)
    saved = [s.saved for s in savings(recording, Setup(topology, TENSORFLOW, COSTS))]

    assert saved == sorted(saved, reverse=True)


@pytest.mark.parametrize(
    ("other", "named"), [("gpu1", "wire"), ("gpu1", "gpu0>gpu1"), ("cpu0", "wire:d2h")]
)
def test_figures_of_the_calibration_are_changed_where_it_has_them(other, named):
    topology = machine(cable("gpu0", other))
    calibration = Calibration("fitted", links={named: LinkConstants(bandwidth=50.0, latency=2.0)})
    saved = {
        key: s.saved
        for key, s in found(copy_plan(topology, (0, 1)), topology, IDEAL, calibration).items()
    }

    assert saved == pytest.approx(
        {("wire", "bandwidth"): 8.0 - 8.0 / 1.1, ("wire", "lanes"): 4.0, ("wire", "latency"): 0.2}
    )


def test_two_copies_without_their_queue_go_at_once():
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2"))
    plan = copy_plan(topology, (0, 1), (0, 2))

    assert found(plan, topology)["device-to-device", "queue"].seconds == 4.5


def test_two_links_that_tie_help_only_together():
    """A third that is not full has no part in it; one that is full alone needs no other."""
    topology = machine(
        cable("gpu0", "gpu1", link_class="a"), cable("gpu0", "gpu2", link_class="b"),
        cable("gpu0", "gpu3", 1000.0, link_class="c"),
    )  # fmt: skip
    tied = found(copy_plan(topology, (0, 1), (0, 2), (0, 3)), topology, IDEAL)
    alone = found(copy_plan(topology, (0, 1), (0, 3)), topology, IDEAL)

    assert tied["a + b", "bandwidth"].saved == pytest.approx(4.0 - 4.0 / 1.1)
    assert tied["a + b", "lanes"].saved == 2.0
    assert all(s.saved == 0.0 for (name, _), s in tied.items() if name != "a + b")
    assert {"a", "c"} == {name for name, _ in alone}


def test_memory():
    topology = machine(cable("gpu0", "gpu1"), node("gpu0", memory=100.0))

    def write(b):
        b.add([b.input(0, 0, 100), b.input(0, 0, 100)])

    saving = found(plan_of(topology, write), topology, calibration=Calibration("none"))[
        "gpu memory", "bandwidth"
    ]

    assert saving.saved == pytest.approx(12.0 - 12.0 / 1.1)


def test_faster_cores_are_faster_past_their_caches_too():
    """400 bytes to read and to write past the cache take 8 s beside 1 s."""
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    calibration = Calibration("here", cpu=Processor(rates={"copy": 400.0}, past_own=100.0))
    recording = record(copy_plan(topology, (0, 1)), topology, TENSORFLOW, calibration)
    tried = savings(recording, Setup(topology, TENSORFLOW, calibration))
    [saved] = [s.saved for s in tried if s.change.resource == "cores"]

    assert saved == pytest.approx(9.0 - 9.0 / 1.1)


def test_memory_of_cpu_devices():
    """400 bytes of which none stays in the cache take 4 s, and a core alone 1 s; the report names
    what is changed.
    """
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    calibration = Calibration("here", cpu=Processor(rates={"copy": 400.0}, memory=100.0))
    plan = copy_plan(topology, (0, 1))
    recording = record(plan, topology, TENSORFLOW, calibration)
    tried = savings(recording, Setup(topology, TENSORFLOW, calibration))
    saved = {(s.change.sort, s.change.resource): s.saved for s in tried}
    about = {
        "question": "q",
        "repeat": 1,
        "equal_paths": "",
        "disturbance": "",
        "nccl_settings": "",
        "workload": "w",
        "size_bytes": 400,
        "ranks": 2,
        "strategy": "s",
        "collective": "c",
    }
    text = explanation_text(Explained(recording, tried, about))

    assert saved["cpu", "memory"] == pytest.approx(4.0 - 4.0 / 1.1)
    assert saved["cpu", "cores"] == 0.0
    assert "10% more bandwidth of memory of CPU devices" in text
    assert "10% faster cores of CPU devices" in text
    assert "machine 0 CPU memory  100.0%" in text


def test_only_what_the_plan_meets_is_changed():
    topology = load_topology("dgx1vx2")
    plan = sr.compile("nccl", sr.load_workload("bytes:1M"), sr.layout(topology))
    recording = record(plan, topology)
    known = {
        (c.sort, c.resource, c.figure)
        for c in changes(
            Setup(topology, TENSORFLOW, sr.load_calibration("nominal")),
            recording.resources,
            [(recording.plan, recording.lowered)],
        )
    }

    assert ("nic", "ib_edr", "bandwidth") in known
    assert ("link", "nvlink2", "lanes") in known
    assert ("lane", "nccl", "queue") in known
    assert not any(sort == "dispatch" for sort, _, _ in known)


def test_transfers_keep_their_routes():
    """The way over gpu1's cpu is not taken although it would be the wider one by then."""
    topology = machine(
        cable("gpu0", "cpu0", 100.0, link_class="a"), cable("cpu0", "gpu1", 100.0, link_class="a"),
        cable("gpu0", "cpu1", 95.0, link_class="b"), cable("cpu1", "gpu1", 95.0, link_class="b"),
    )  # fmt: skip
    saved = found(copy_plan(topology, (0, 1)), topology, IDEAL)

    assert set(saved) == {("a", "bandwidth"), ("a", "lanes")}


@pytest.mark.parametrize("calibration", ["nominal", "dgx1p-tf2018"])
def test_the_attribution_foretells_small_savings(calibration):
    """Where the path stays the same, a tenth less of a cause saves a tenth of its share."""
    topology = sr.load_topology("dgx1v")
    constants = sr.load_calibration(calibration)
    plan = sr.compile(
        "hierarchical_copy+packs=8", sr.load_workload("bytes:32M"), sr.layout(topology)
    )
    recording = record(plan, topology, TENSORFLOW, constants)
    spent: dict[str, float] = {}
    for step in recording.critical_path():
        for part in step.parts:
            cause = part.meanwhile or part.cause
            spent[cause] = spent.get(cause, 0.0) + part.seconds
    saved = {
        (s.change.sort, s.change.figure): s
        for s in savings(recording, Setup(topology, TENSORFLOW, constants))
    }

    assert saved["link", "latency"].saved == pytest.approx(spent["latency"] / 10, rel=1e-6)
    if calibration != "nominal":
        assert saved["dispatch", "cost"].saved == pytest.approx(spent["dispatch"] / 10, rel=1e-6)


def test_a_machine_is_left_as_it_was():
    topology = pair(latency=1.0)
    plan = copy_plan(topology, (0, 1))
    before = simulate(plan, topology, TENSORFLOW, COSTS).to_json()
    found(plan, topology)

    assert simulate(plan, topology, TENSORFLOW, COSTS).to_json() == before


@pytest.mark.parametrize(
    ("lane", "kind"),
    [
        ("gpu0 device-to-device", "device-to-device"),
        ("n1.gpu3>n1.gpu0 nccl 5", "nccl"),
        ("gpu0>gpu1 nccl -1", "nccl"),
    ],
)
def test_the_kind_of_a_lane(lane, kind):
    assert kind == lane_kind(lane)


@pytest.mark.parametrize(
    ("name", "where", "least", "most"),
    [("dgx-h100x2", CHANNELS, -0.01, 0.001), ("dgx1v", "nvlink2", 0.05, 0.1)],
)
def test_a_kernels_channels_limit_it_only_where_faster_links_save_nothing(name, where, least, most):
    """The rate of blocks that pause between slices follows that of their link."""
    setup = Setup(name, "nccl")
    recording = setup.record(setup.compile(parse_strategy("nccl"), tensor(64 << 20, 0)))
    times: Counter[str] = Counter()
    for part in (part for op in recording.critical_path() for part in op.parts):
        times[(part.at or part.where).rpartition(" ")[2]] += part.seconds
    [faster] = [
        each.change.apply(setup)
        for each in savings(recording, setup)
        if each.change.figure == "bandwidth" and "nvlink" in each.change.resource
    ]

    assert where == times.most_common(1)[0][0]
    assert least < 1 - faster.find_seconds(recording.plan) / recording.result.seconds < most
