"""Sweeps over files of jobs: a cell is the file with other keys, and its row what `jobs` says."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.report.jobs import BESIDE
from simreduce.study.job_files import load_jobs
from simreduce.study.sweep.engine import Processes
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.grid import read_specification
from simreduce.study.sweep.question import read_question
from simreduce.study.tune.jobs import answer_jobs
from tests.study.sweep.sweeping import cells_of, expected, kill, rows, start, until

JOBS = """
topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1"
[[job]]
name = "a"
nodes = 1
workload = "bytes:1M"
count = 2
[[job]]
name = "my b.c"
nodes = 1
workload = "alexnet"
step = {batch = 4, time = "1 ms"}
count = 2
[[traffic]]
name = "noise"
pattern = "incast"
to = "n0"
size = "1 MiB"
every = "5 ms"
"""
TWO = JOBS.replace("nodes = 1", "nodes = [0, 2]", 1).replace("nodes = 1", "nodes = [3, 1]")
ONE = JOBS.partition('[[job]]\nname = "my')[0] + "[[traffic]]" + JOBS.partition("[[traffic]]")[2]


def write(tmp_path, text=JOBS, name="jobs.toml"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return str(path)


def test_a_cell_is_what_jobs_prints_of_the_same_file(tmp_path):
    """To the bit, whichever keys were set."""
    settings = {
        "oversubscription": 2, "traffic.noise.size": "64K", "job.my b.c.count": 1,
        "job.a.workload": "bytes:2M", "nccl.NCCL_ALGO": "Ring",
    }  # fmt: skip
    row = evaluate(read_question(write(tmp_path, TWO)).cell(settings))
    text = TWO.replace("nics=1", "nics=1,oversubscription=2").replace('"1 MiB"', '"65536 B"')
    text = text.replace("bytes:1M", "bytes:2M").replace(
        "count = 2\n[[traffic", "count = 1\n[[traffic"
    )
    asked = load_jobs(write(tmp_path, f'nccl.NCCL_ALGO = "Ring"\n{text}', "same.toml"))
    found = BESIDE.write(answer_jobs(asked))
    worst = max(found["jobs"], key=lambda each: each["slowdown"])

    assert worst["slowdown"] > 1.5
    assert (row.job, row.slowdown, row.seconds, row.alone) == (
        worst["job"], worst["slowdown"], worst["seconds"], worst["alone_s"],
    )  # fmt: skip
    assert (row.fairness, row.worst, row.ranks, row.topology_digest, row.link) == (
        found["fairness"], max(each["worst"] for each in found["jobs"]), 32,
        found["topology_digest"], worst["shared"][0]["link"],
    )  # fmt: skip


def test_keys_of_jobs_and_traffic_go_by_their_names(tmp_path):
    """Whatever is in the names; what excludes a key is no longer there."""
    question = read_question(write(tmp_path))
    found = question.cell(
        {
            "job.my b.c.step.rate": "1 TFLOP/s", "job.my b.c.checkpoint.size": 4096,
            "traffic.noise.rate": "1 GB/s", "job.a.nodes": "2-3", "copies": 2,
        }
    ).document  # fmt: skip
    first, second = found["scenario"]["job"]

    assert second["step"] == {"batch": 4, "rate": "1 TFLOP/s"}
    assert second["checkpoint"] == {"size": "4096 B"}
    assert first["nodes"] == "2-3"
    assert found["scenario"]["traffic"][0]["rate"] == "1 GB/s"
    assert "every" not in found["scenario"]["traffic"][0]
    assert found["copies"] == 2
    assert question.document["scenario"]["job"][0]["nodes"] == 1


def test_values_are_written_as_those_of_scenarios(tmp_path):
    """Sizes have units, strategies and meshes commas."""
    over = {
        "traffic.noise.size": "64K..256K*2", "job.a.strategy": "ring;nccl+small=65536,10",
        "job.my b.c.step.mesh": "tp=2,pp=2",
    }  # fmt: skip
    found = read_specification(write(tmp_path), over, {}).over

    assert found["traffic.noise.size"] == (65536, 131072, 262144)
    assert found["job.a.strategy"] == ("ring", "nccl+small=65536,10")
    assert found["job.my b.c.step.mesh"] == ("tp=2,pp=2",)


def test_copies_are_those_of_all_jobs(tmp_path):
    """Each with nodes of its own, so a file that names nodes has none."""
    file = write(tmp_path, JOBS.partition("[[traffic]]")[0])
    once, twice = (evaluate(read_question(file).cell({"copies": n})) for n in (1, 2))
    named = evaluate(read_question(write(tmp_path, TWO)).cell({"copies": 2}))

    assert (once.ranks, twice.ranks) == (16, 32)
    words = "say how many nodes, not which, so that there can be several"
    assert named.reason == f"job[0].nodes: {words}; job[1].nodes: {words}"


def test_every_fault_is_said_at_once(tmp_path):
    """Unknown keys and names with the nearest, and values that no job could have."""
    over = {
        "oversubscripton": "1,2", "job.my b.nodes": "1", "job.a.nods": "1", "job.a.count": "x,2",
        "job.my b.c.step.tiem": "1 ms", "job.a.strategy": "rng", "traffic.noise.pattern": "incats",
        "job.a.step.batch": "many", "traffic.noize.size": "1M", "job.a.workload": "alexnett",
        "job.a.checkpoint.evry": "1 ms", "slow": "gpu0=2", "copies": "0", "job": "2", "job.a": "2",
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        read_specification(write(tmp_path), over, {})
    found = dict(problem.split(": ", 1) for problem in caught.value.problems)

    assert {key.removeprefix("over.") for key in found} == set(over)
    for key, words in {
        "oversubscripton": "did you mean 'oversubscription'?",
        "job.my b.nodes": "no job is named 'my b' (did you mean 'my b.c'?)",
        "job.a.nods": "did you mean 'nodes'?",
        "job.a.count": "must be a whole number from 1 to",
        "job.my b.c.step.tiem": "did you mean 'time'?",
        "job.a.strategy": "did you mean 'ring'?",
        "traffic.noise.pattern": "did you mean 'incast'?",
        "job.a.step.batch": "must be a whole number",
        "traffic.noize.size": "no traffic is named 'noize' (did you mean 'noise'?)",
        "job.a.workload": "did you mean 'alexnet'?",
        "job.a.checkpoint.evry": "did you mean 'every'?",
        "slow": "unknown key",
        "job": "no job is named ''",
        "job.a": "unknown key; known keys: name, nodes",
        "copies": "must be a whole number of copies from 1",
    }.items():
        assert words in found[f"over.{key}"]


def test_keys_that_exclude_each_other_are_refused(tmp_path):
    over = {"traffic.noise.rate": "1 GB/s", "traffic.noise.every": "1 ms"}

    with pytest.raises(InputError, match="exclude each other"):
        read_specification(write(tmp_path), over, {})


def test_a_file_with_faults_is_no_question(tmp_path):
    """They are said with the file and the key, before anything starts."""
    path = write(tmp_path, JOBS.replace("count = 2", 'count = "two"', 1).replace("to =", "too ="))
    with pytest.raises(InputError) as caught:
        read_question(path)

    assert [each.rpartition(": ")[0] for each in caught.value.problems] == [
        f"{path}: job[0].count", f"{path}: traffic[0].too",
    ]  # fmt: skip
    for kind in ("run", "step", "bench"):
        with pytest.raises(InputError):
            read_question(write(tmp_path), kind)


def test_what_cannot_be_names_the_key(tmp_path):
    """And no file that there is not; also what only the fabric refuses."""
    question = read_question(write(tmp_path))
    nodes = evaluate(question.cell({"job.a.nodes": 9}))
    rate = evaluate(question.cell({"traffic.noise.rate": "1 TB/s"}))

    assert nodes.state == "refused"
    assert nodes.reason == "job[0].nodes: 9 nodes asked for, and 4 of 4 are free"
    assert rate.reason.startswith("traffic[0].rate: offers ")


def test_files_of_jobs_are_part_of_the_question(tmp_path):
    """Another workload in a file is another cell."""
    digests = []
    for elements in (1024, 2048):
        write(tmp_path, f"name,elements\na,{elements}\n", "mine.csv")
        text = JOBS.replace("bytes:1M", f"{elements}/mine.csv")
        folder = tmp_path / str(elements)
        folder.mkdir()
        write(folder, f"name,elements\na,{elements}\n", "mine.csv")
        file = write(folder, text.replace(f"{elements}/", ""))
        digests.append(read_question(file).cell({}).contents["job[0].workload"])

    assert digests[0] != digests[1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_sweep_of_jobs_that_is_killed_goes_on(tmp_path):
    """No row is lost, and all are those of an undisturbed run."""
    over = {"job.a.workload": "bytes:64K,bytes:128K", "traffic.noise.size": "1K,2K,4K"}
    plan = read_specification(write(tmp_path, ONE), over, {}).plan()
    path = str(tmp_path / "rows.db")
    whole = expected(plan)
    first = start(path, plan, lambda: Processes(1, 4 << 30))
    until(lambda: _count(path) > 0)
    kill(first.pid)
    first.join()
    kept = rows(path)
    again = start(path, plan, lambda: Processes(1, 4 << 30))
    again.join()

    assert 0 < len(kept)
    assert kept.items() <= whole.items()
    assert rows(path) == whole
    assert len(whole) == len(cells_of(plan)) == 6
    assert {row[0] for row in whole.values()} == {"done"}


def _count(path):
    try:
        return len(rows(path))
    except InputError:
        return 0
