"""Collectives beside an incast: what was measured, and predicted."""

from __future__ import annotations

from statistics import median

import pytest

from simreduce.errors import InputError
from simreduce.files.published import CongestedCall, congested_calls
from simreduce.study.accuracy import kernels
from simreduce.study.accuracy.kernels import (
    SYSTEMS,
    System,
    congestible,
    group_congestion,
    predict_congestion,
)

MIB = 1 << 20


def call(system: str, collective: str, nodes: int, nbytes: int) -> CongestedCall:
    return CongestedCall(system, collective, nodes, nodes // 2, nbytes, 1.0, 1.0)


def slowdowns(*calls: CongestedCall, systems=SYSTEMS) -> list[float]:
    return [point.predicted for point in predict_congestion(calls, systems)]


def test_published_calls_are_pairs():
    calls = congested_calls()
    assert len(calls) == 7 * 2 * 8  # systems and numbers of nodes, collectives, sizes
    assert {each.system for each in calls} == set(SYSTEMS)
    largest = max(calls, key=lambda each: each.slowdown)
    assert (largest.system, largest.collective, largest.nodes) == ("leonardo", "all_to_all", 64)
    assert largest.slowdown == pytest.approx(2419.56 / 396.44)


def test_systems_separate(monkeypatch):
    """Where each flow has its own back-pressure nothing is slowed; where links have it, more nodes
    are slowed more, and nodes of one leaf are not.
    """
    monkeypatch.setattr(kernels, "_DEALS", 1)
    few, many = slowdowns(*(call("leonardo", "all_gather", n, 16 * MIB) for n in (16, 64)))
    assert few < 1.5
    assert many > 2.0
    assert slowdowns(call("lumi", "all_gather", 32, 16 * MIB)) == [pytest.approx(1.0, abs=0.02)]
    assert slowdowns(call("cresco8", "all_to_all", 16, MIB)) == [pytest.approx(1.0)]
    # An all-gather of small messages waits for latency, which no incast changes.
    assert slowdowns(call("leonardo", "all_gather", 64, MIB // 8))[0] < 1.25


@pytest.mark.slow
def test_half_of_the_slowdowns_are_close():
    """A few of the published calls; all of them: `simreduce accuracy congestion`."""
    few = [
        each for each in congested_calls()
        if each.nbytes in (MIB // 4, 16 * MIB) and each.nodes in (16, 32)
    ]  # fmt: skip
    points = [*predict_congestion(few)]
    groups = group_congestion(points)
    assert groups["lumi"].median < 0.1
    assert groups["leonardo"].median < 0.35
    assert groups["cresco8"].median < 0.35
    assert median(abs(p.alone / p.of.alone - 1) for p in points) < 0.35


def test_a_network_must_have_the_nodes():
    calls = [call("mine", "all_gather", 64, MIB), call("yours", "all_gather", 8, MIB)]
    with pytest.raises(InputError, match="mine: fat_tree:8 has fewer than 64 nodes"):
        congestible(calls, {"mine": System("fat_tree:8")})
    assert congestible(calls, {"mine": System("fat_tree:64")}) == (calls[:1], {"yours": 1})
    with pytest.raises(InputError, match="systems known are lumi, not 'mine', 'yours'"):
        congestible(calls, {"lumi": SYSTEMS["lumi"]})
    with pytest.raises(InputError, match="no call of 32"):
        congestible([call("lumi", "all_gather", 8, 8)], SYSTEMS)


HEAD = "system,case,nodes,victim_nodes,victim,msg_size_bytes,median_avg_us"
ALONE = "a,All,8,4,agtr_comm_only,1,2"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "empty; the first line names the columns"),
        ([HEAD, "a,All,8,4,agtr,1,2"], "victim: unknown benchmark 'agtr'"),
        ([HEAD, "a,All,8,4,agtr_comm_only,1,-2"], "must be a time in us, such as 12.5, got '-2'"),
        ([HEAD, "a,All,0,4,agtr_comm_only,1,2"], "nodes: must be a whole number from 1, got '0'"),
        ([HEAD, "a,All,8,7,agtr_comm_only,1,2"], "must leave 2 or more of the 8 nodes"),
        ([HEAD, "a,All,8,1,agtr_comm_only,1,2"], "and be 2 or more, got 1"),
        ([HEAD, ALONE], "no call is timed both alone and"),
        ([HEAD, ALONE, ALONE], "times a call again without 'Inc-Congested' in its case"),
        ([f"{HEAD},colour", f"{ALONE},red"], "unknown key"),
    ],
)
def test_faults_of_a_file(tmp_path, lines, fault):
    path = tmp_path / "times.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        congested_calls(str(path))
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems
