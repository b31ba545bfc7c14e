"""The timeline of synchronous replicas, character by character."""

from __future__ import annotations

from simreduce.report.replicas import replicas_timeline
from simreduce.training.distributions import Constant
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import delays
from simreduce.training.replicas.processes import simulate_replicas


def test_what_workers_do_is_where_the_run_has_it():
    """Two updates of 8 s: read for 1 s, compute for 4 s or 2 s, send for 2 s, and a second for the
    variables.
    """
    compute = (Constant(4.0), Constant(2.0))
    run = simulate_replicas(
        ReplicasJob(SyncSettings(2), delays(2, 1, 1.0, 2.0), compute, update=1.0), 2
    )

    lines = replicas_timeline(run, "ab", 16)

    assert (
        "the first repetition, updates 1 to 2: r reads, C computes, s sends, . waits or is gone"
        == lines[0]
    )
    assert ("0", "16 s") == (lines[1].split()[0], lines[1][-4:])
    assert [
        "  a       |rCCCCss.rCCCCss.|",
        "  b       |rCCss...rCCss...|",
        "  updates |........|......||",
    ] == lines[2:]


def test_only_the_last_updates_are_shown_and_some_of_many_workers():
    run = simulate_replicas(ReplicasJob(SyncSettings(12), delays(12, 1), Constant(1.0)), 9)
    lines = replicas_timeline(run, [f"w{i}" for i in range(12)])

    assert "updates 6 to 9" in lines[0]
    assert ["w0", "w6", "w11"] == [lines[i].split()[0] for i in (2, 8, 9)]
    assert "  (4 workers more)" == lines[-1]


def test_a_worker_that_dies_is_gone_in_the_middle_of_its_step():
    """Worker 1 computes until 3 s; the other goes on."""
    run = simulate_replicas(
        ReplicasJob(SyncSettings(1, 2), delays(2, 1), Constant(4.0), dies={1: 3.0}), 2
    )

    assert ["  a       |CCCCCCCC|", "  b       |CCC.....|"] == replicas_timeline(run, "ab", 8)[2:4]


def test_without_updates_there_is_nothing_to_show():
    run = simulate_replicas(
        ReplicasJob(SyncSettings(2), delays(2, 1), Constant(4.0), dies={1: 3.0}), 2
    )

    assert [] == replicas_timeline(run, "ab")
