"""The processes that run plans: one, several, and what pretends to be GPUs. They start, answer,
fail in words, and end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from simreduce_validate.measuring import time_in_rounds
from simreduce_validate.running import BUILTINS, ROUTES, Builtin, Worker, open_backend
from simreduce_validate.running.by_rank import BY_RANK
from simreduce_validate.running.child import Child
from simreduce_validate.running.computer import this_computer, usable_cores
from simreduce_validate.running.discover import from_table
from simreduce_validate.running.workers import loopback

import simreduce as sr
from simreduce.errors import DeviceError, InputError, StrategyError
from simreduce.plan import Contract, Kind, PlanBuilder
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from validate.tests.commands import document, is_alive
from validate.tests.emitted import workload

REPOSITORY = Path(__file__).parents[2]
FOUR = sr.layout(load_topology("switch:4"))
TWO_TASKS = sr.layout(load_topology("dgx1vx2,nic=ib_edr")).only([0, 1, 8, 9])


@pytest.fixture(scope="module")
def inproc():
    with open_backend("inproc", FOUR) as backend:
        yield backend


@pytest.fixture(scope="module")
def cluster():
    with open_backend("cluster", FOUR) as backend:
        yield backend


def on_four(text, sizes=(1000, 7), dtype=0):
    return compile_plan(text, workload(sizes, dtype), FOUR)


def right(measured):
    return [*measured.wrong, *measured.departures]


@pytest.mark.parametrize("route", ROUTES)
def test_every_algorithm_on_both_routes(inproc, route):
    ran = 0
    for name in ALGORITHMS:
        try:
            plan = on_four(name)
        except StrategyError:
            continue
        measured = inproc.run(plan, 2, warmup=0, route=route)
        ran += 1

        assert [] == right(measured), name
        assert (measured.seconds > 0).all()
        assert (
            plan.transfers
            == sum(measured.prepared.executed.transfers.values())
            == measured.prepared.executed.copied
        )

    assert ran > 25


def test_workers_say_what_cores_they_have():
    """One of them may use one core, however many there are."""
    first, second = loopback(2)
    workers = [first, Worker(second.address, ("taskset", "-c", str(min(os.sched_getaffinity(0)))))]
    with open_backend("cluster", FOUR.only([0, 1]), used=2, workers=workers) as backend:
        told = backend.provenance["workers"]

    assert [worker.address for worker in workers] == [each["address"] for each in told]
    assert [usable_cores(), 1] == [each["cores"] for each in told]
    assert {this_computer().name} == {each["name"] for each in told}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("text", ["ring", "pscpu+packs=2", "chain+chunk=512", "xring+mean"])
def test_a_cluster_sums_too(cluster, text, route):
    plan = on_four(text)
    measured = cluster.run(plan, 3, route=route, chained=2)

    assert [] == right(measured)
    assert 2 * plan.transfers == sum(measured.prepared.executed.transfers.values())
    assert 0 == measured.prepared.executed.copied


@pytest.mark.parametrize("dtype", [1, 3, 4])
def test_a_cluster_sends_any_dtype(cluster, dtype):
    assert [] == right(cluster.run(on_four("ring", dtype=dtype), 1))


def test_a_cluster_of_tasks_copies_within_them():
    """Two processes of two ranks and a host each: a copy within one is made real, one between them
    is a message.
    """
    plan = compile_plan("ring/ring", workload([64]), TWO_TASKS)
    with open_backend("cluster", TWO_TASKS) as backend:
        measured = backend.run(plan, 2)
    task = {rank: number for number, ranks in enumerate(TWO_TASKS.tasks) for rank in ranks}
    within = sum(task[s] == task[t] for s, t in _ends(plan))

    assert [] == right(measured)
    assert 0 < within == measured.prepared.executed.copied < plan.transfers


def _ends(plan):
    index = {name: i for i, name in enumerate(plan.devices)}
    return [(index[source], index[target]) for source, target, _ in plan.copies()]


def test_a_cluster_starts_as_many_processes_as_plans_need():
    """Without its host, three ranks are three processes, wherever a prefix starts them."""
    shape = sr.layout(load_topology("switch:3"))
    workers = [Worker(worker.address, ("nice", "-n", "1")) for worker in loopback(3)]
    with open_backend("cluster", shape, used=3, workers=workers) as backend:
        assert [] == right(backend.run(compile_plan("direct", workload([9]), shape), 1))
        assert [] == right(backend.run(Builtin("CollectiveReduceV2", (1000, 7), 3), 5))
        assert [worker.address for worker in workers] == [
            worker.address for worker in backend.workers
        ]
        with pytest.raises(InputError, match="the plan is for gpu0"):
            backend.prepare(compile_plan("pscpu", workload([9]), shape))


def test_transfers_have_a_timeline(cluster):
    """Every COPY between two workers is an event at its receiver, with a time of its own."""
    plan = on_four("direct")
    candidate = cluster.prepare(plan)
    events = candidate.trace()
    candidate.release()
    names = [event.name for event in events]
    arrived = [event for event in events if event.name.startswith("RecvTensor op")]

    assert {f"op{op}" for op in range(len(plan)) if plan.kind[op] in {Kind.COPY, Kind.ADD}} <= set(
        names
    )
    assert plan.transfers == len(arrived)
    assert all(0 <= event.start <= event.finish < 60 for event in events)
    assert sum(event.finish > event.start for event in arrived) > plan.transfers / 2


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "name", [name for name in BUILTINS if BUILTINS[name] != "nccl" and name not in BY_RANK]
)
def test_builtins_are_checked_alike(inproc, name, route):
    measured = inproc.run(Builtin(name, (1000, 7), 4), 2, route=route)

    assert [] == right(measured)
    assert sum(measured.prepared.executed.transfers.values()) == measured.prepared.executed.copied


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("ReductionToOneDevice", "session"),
        ("CollectiveReduceV2", "function"),
        ("MultiWorkerMirroredStrategy", "session"),
        ("SyncReplicasOptimizer", "session"),
    ],
)
def test_builtins_of_a_cluster(cluster, name, route):
    assert [] == right(cluster.run(Builtin(name, (1000, 7), 4), 2, route=route))


@pytest.mark.parametrize("dtype", [1, 2])
def test_synchronous_replicas_read_the_mean_of_every_update(cluster, dtype):
    """Of three ranks, on each of them and in every step; after the last one nobody has begun
    another.
    """
    candidate = cluster.prepare(Builtin("SyncReplicasOptimizer", (1000, 7), 3, dtype))
    try:
        for _ in range(4):
            assert (candidate.time(1) > 0).all()
            assert [] == candidate.check()
    finally:
        candidate.release()


def test_collectives_of_both_routes_do_not_mix(cluster):
    """They would wait for ever."""
    cluster.run(on_four("direct"), 1, route="function")
    with pytest.raises(InputError, match="not by session in a cluster that has run functions"):
        cluster.prepare(Builtin("CollectiveReduceV2", (10,), 4))


def test_upstream_forgets_the_last_of_an_odd_number(inproc):
    """What the check is for: TensorFlow's hierarchical copy of three devices is the sum of two."""
    wrong = inproc.run(Builtin("HierarchicalCopyAllReduce", (100,), 3), 1).wrong

    assert 3 == len(wrong)
    assert wrong[0].startswith("gpu0 [0, 100): element 0 is ")


def test_what_these_devices_cannot_do_is_told(inproc):
    with pytest.raises(InputError, match="NCCL is for GPUs"):
        inproc.prepare(Builtin("NcclAllReduce", (10,), 4))
    with pytest.raises(InputError, match="needs a process per rank"):
        inproc.prepare(Builtin("MultiWorkerMirroredStrategy", (10,), 4))
    with pytest.raises(InputError, match="SyncReplicasOptimizer: needs a process per rank"):
        inproc.prepare(Builtin("SyncReplicasOptimizer", (10,), 4))
    with pytest.raises(InputError, match="SyncReplicasOptimizer: its accumulators take no int32"):
        inproc.prepare(Builtin("SyncReplicasOptimizer", (10,), 4, 4))
    with pytest.raises(InputError, match="did you mean 'session'"):
        inproc.prepare(on_four("ring"), route="sesion")
    with pytest.raises(InputError, match="keeps no timeline"):
        inproc.prepare(on_four("ring"), route="function").trace()


def test_candidates_take_turns(inproc):
    candidates = [inproc.prepare(on_four(text)) for text in ("ring", "direct")]
    times = time_in_rounds(candidates, 7)
    ring, direct = (
        candidate.measured(seconds) for candidate, seconds in zip(candidates, times, strict=True)
    )

    assert [7, 7] == [len(ring.seconds), len(direct.seconds)]
    assert [] == right(ring) == right(direct)


def test_a_chained_step_takes_longer_than_one(inproc):
    """Its time is divided by how often it does the plan: about what one takes."""
    plan = on_four("ring", (200_000,))
    once, chained = inproc.run(plan, 20), inproc.run(plan, 20, chained=4)

    assert 0.2 < chained.seconds.min() / once.seconds.min() < 2


def test_memory_is_given_back():
    """Candidates of 4 MiB on each of four devices, one after another."""
    with open_backend("inproc", FOUR) as backend:
        plan = on_four("reduce_to_one", (1 << 20,))
        sizes = []
        for _ in range(30):
            backend.run(plan, 1, warmup=0)
            sizes.append(_resident(backend.driver.pid))

    assert max(sizes[10:]) < max(sizes[:10]) + (20 << 20)


def _resident(pid):
    """Bytes of memory that a process has."""
    fields = Path(f"/proc/{pid}/statm").read_text("ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


def test_gpus_may_be_pretended():
    """A machine with NVLink as nvidia-smi prints it; its GPUs are CPU devices here."""
    table = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-19\nGPU1\tNV2\t X \t0-19\n"
    shape = sr.layout(from_table(table))
    with open_backend("gpu", shape, pretend=True) as backend:
        for text in ("nccl", "pscpu"):
            assert [] == right(backend.run(compile_plan(text, workload([100]), shape), 2))


def test_without_gpus_it_says_so():
    with (
        pytest.raises(InputError, match="TensorFlow finds 0 GPUs here, and 4 are needed"),
        open_backend("gpu", FOUR),
    ):
        pass


def test_a_worker_that_dies_is_told_and_the_others_are_stopped():
    others = set(_children())
    with open_backend("cluster", FOUR, used=4, patience=20) as backend:
        pids = set(_children()) - others
        candidate = backend.prepare(on_four("ring"))
        os.kill(next(pid for pid in pids if "running.server" in _command(pid)), signal.SIGKILL)
        with pytest.raises(DeviceError, match="cluster: the driver: "):
            candidate.time(3)

    assert len(pids) == 5
    assert not any(map(is_alive, pids))


def test_what_takes_too_long_is_given_up():
    b = PlanBuilder(FOUR.devices)
    values = [b.input(0, 0, 1 << 22)]
    for i in range(400):
        values.append(b.copy(values[-1], (i + 1) % 4))
    b.output(values[-1])
    plan = b.finish(Contract.broadcast([0], [(0, 1 << 22, 0)], 0))
    began = time.monotonic()
    with open_backend("inproc", FOUR) as backend:
        candidate = backend.prepare(plan)
        pid, backend.patience = backend.driver.pid, 0.5
        with pytest.raises(DeviceError, match=r"no answer to 'time' within 0\.5 s"):
            candidate.time(10_000)

    assert not is_alive(pid)
    assert time.monotonic() - began < 60


def test_a_process_that_cannot_start_is_told():
    with pytest.raises(DeviceError, match="the driver: cannot be started: no-such-program"):
        Child("simreduce_validate.running.driver", "the driver", ["no-such-program"])
    child = Child("simreduce_validate.running.nowhere", "the driver")
    with pytest.raises(DeviceError, match=r"the driver: it (has )?ended.*No module named"):
        child.ask("open", seconds=20)
    child.close()


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(blow, tmp_path):
    """Neither by Ctrl-C nor when the process that started everything is killed, while a step is
    running.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import simreduce as sr\n"
        "from simreduce_validate.running import open_backend\n"
        "from simreduce.planners.strategy.compiler import compile_plan\n"
        "from simreduce.workload import Gradient, Workload\n"
        "shape = sr.layout(sr.load_topology('switch:2'))\n"
        "plan = compile_plan('ring', Workload('w', (Gradient('g', 1000),)), shape)\n"
        "with open_backend('cluster', shape, used=2) as backend:\n"
        "    candidate = backend.prepare(plan)\n"
        "    print('running', flush=True)\n"
        "    candidate.time(100_000)\n",
        "ascii",
    )
    path = os.pathsep.join(
        filter(None, [str(REPOSITORY), str(REPOSITORY / "validate"), os.environ.get("PYTHONPATH")])
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
    try:
        assert "running\n" == process.stdout.readline()
        pids = _children(process.pid)
        os.kill(process.pid, blow)
        process.wait(30)
    finally:
        process.kill()
        process.stdout.close()
    end = time.monotonic() + 15
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)

    assert 3 == len(pids)
    assert not any(map(is_alive, pids))


def _children(parent=None):
    """Ids of the processes that this one, or `parent`, has started."""
    mine = str(parent or os.getpid())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text("ascii").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == mine:
                found.append(int(entry.name))
    return found


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_the_command_prints_both_times(tmp_path):
    (tmp_path / "own.toml").write_text('step = "50 us"\n[cpu]\ncores = 2\n', "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "validate", "switch:3", "--algo", "ring,direct", "-b",
        "1K", "-e", "64K", "-f", "64",
         "-n", "3", "--builtin", "ReductionToOneDevice", "--calibration",
         str(tmp_path / "own.toml")],
        capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line.strip() and not line.startswith("#")
    ]

    assert 0 == done.returncode, done.stderr
    assert ["ring", "direct", "ReductionToOneDevice", "again"] * 2 == [row[-1] for row in rows]
    assert all(float(row[4]) > 0 < float(row[7]) and row[10] == "0" for row in rows)
    assert "# Faults               : 0 OK" in done.stdout.splitlines()


def test_the_command_fails_where_a_result_is_wrong():
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "validate", "switch:3", "-b", "64", "-n", "1", "--json",
        "--builtin",
         "HierarchicalCopyAllReduce"],
        capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY,
    )  # fmt: skip

    assert 1 == done.returncode
    assert '"wrong": 3' in done.stdout


def test_the_command_predicts_an_update_of_synchronous_replicas_by_the_plan_that_stands_for_it(
    tmp_path,
):
    """The mean, by way of rank 0: as that plan with the same constants, if without its tokens."""
    (tmp_path / "own.toml").write_text('step = "50 us"\n[cpu]\ncores = 2\n', "utf-8")
    found = document(
        "validate switch:3 --algo reduce_to_one+mean --builtin SyncReplicasOptimizer -b 4K -e 4K "
        "-n 3 --backend cluster "
        "--calibration own.toml", tmp_path,
    )["rows"]  # fmt: skip

    assert ["reduce_to_one+mean", "SyncReplicasOptimizer", "reduce_to_one+mean"] == [
        row["algorithm"] for row in found
    ]
    assert {"avg"} == {row["redop"] for row in found}
    assert 1 == len({row["predicted_time_us"] for row in found})


def test_measured_times_are_as_many_as_asked_for(inproc):
    assert (5,) == np.shape(inproc.run(compiled_on_four(), 5).seconds)


def compiled_on_four():
    return on_four("ring")
