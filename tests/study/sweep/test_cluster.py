"""A Dask cluster on this computer: a scheduler and workers that the test starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest

from simreduce.errors import InputError
from simreduce.study.sweep.engine import DaskCluster, EngineGone
from simreduce.study.sweep.evaluate import evaluate
from tests.study.sweep.sweeping import begun, expected, plan, rows, size, until

pytest.importorskip("distributed")
OVER = {"nodes": "2..5", "strategy": "ring,direct,nccl", "size": "1K..1M*4"}
PLAN = plan(OVER)
DASK = [sys.executable, "-m", "dask"]


@pytest.fixture
def dask(tmp_path):
    """A scheduler with two workers: its address, its process, and theirs."""
    file = tmp_path / "scheduler.json"
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "dask.log").open("ab"))

        def begin(*words):
            process = stack.enter_context(
                subprocess.Popen(
                    [*DASK, *words, "--no-dashboard", "--host", "127.0.0.1"],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(process.kill)
            return process

        scheduler = begin("scheduler", "--port", "0", "--scheduler-file", str(file))
        until(lambda: size(str(file)))  # it is there before it is written
        address = json.loads(file.read_text())["address"]
        workers = [begin("worker", address, "--nthreads", "1", "--no-nanny") for _ in range(2)]
        yield address, scheduler, workers


def engine(address, said=None):
    return partial(DaskCluster, address, None, 4 << 30, (said or []).append)


def _rows(answers):
    return {each.cell.digest: each.row for each in answers}


def _rows_here():
    return {p.cell.digest: evaluate(p.cell) for p in PLAN}


@pytest.mark.slow
def test_a_cluster_gives_the_same_rows_to_the_bit_though_a_worker_dies(tmp_path, dask):
    address, _, workers = dask
    path = str(tmp_path / "rows.db")
    command = [
        sys.executable, "-m", "simreduce", "sweep", "switch:8", "--db", path, "--cluster", address,
        *(word for key, values in OVER.items() for word in ("--over", f"{key}={values}")),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        until(lambda: begun(path) and len(rows(path)) > 2)
        workers[0].kill()
        out, err = sweep.communicate(timeout=60)

    assert sweep.returncode == 0, f"{out}{err}{(tmp_path / 'dask.log').read_text()}"
    assert rows(path) == expected(PLAN)


@pytest.mark.slow
def test_rows_that_die_with_their_worker_before_they_are_fetched_are_computed_again(
    dask, monkeypatch
):
    address, _, _ = dask
    cluster = engine(address)()
    take, met = DaskCluster._take, []

    def late(self, future, batch, running):
        if not met:
            pids = self._client.run(os.getpid)
            holder = pids.pop(self._client.who_has(future)[future.key][0])
            (other,) = pids.values()
            os.kill(other, signal.SIGSTOP)  # lest it has computed them again before we look
            os.kill(holder, signal.SIGKILL)
            try:
                until(lambda: future.status != "finished")
                met.append(future.status)
            finally:
                os.kill(other, signal.SIGCONT)
        return take(self, future, batch, running)

    monkeypatch.setattr(DaskCluster, "_take", late)
    try:
        found = [each for answers in cluster.run([p.cell for p in PLAN]) for each in answers]
    finally:
        cluster.close()

    assert met == ["lost"]
    assert _rows(found) == _rows_here()


@pytest.mark.slow
def test_a_scheduler_that_goes_away_ends_with_what_there_is(tmp_path, dask):
    address, scheduler, _ = dask
    path = str(tmp_path / "rows.db")
    command = [
        sys.executable, "-m", "simreduce", "sweep", "switch:4", "--db", path, "--cluster", address,
        "--over", "seed=1..400", "--set", "jitter=0.1",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        until(lambda: begun(path) and len(rows(path)) > 10)
        scheduler.kill()
        out, err = sweep.communicate(timeout=60)

    assert sweep.returncode == 1, f"{out}{err}"
    assert "the scheduler went away; the same command goes on from here" in out
    assert "Traceback" not in err, err
    assert 10 < len(rows(path)) < 400


def test_an_address_where_nobody_is_and_a_package_that_is_missing_are_said(monkeypatch):
    monkeypatch.setattr("simreduce.study.sweep.engine._PATIENCE", 0.3)
    with pytest.raises(InputError, match=r"--cluster tcp://127\.0\.0\.1:9: nobody answers"):
        engine("tcp://127.0.0.1:9")()
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(InputError, match=r"needs dask-jobqueue: pip install 'simreduce\[cluster\]"):
        engine("slurm")()


@pytest.mark.slow
def test_slurm_is_asked_for_the_workers_that_the_users_configuration_describes(
    tmp_path, monkeypatch
):
    """A stand-in for `sbatch` runs the job here: its script is right, and rows come back."""
    pytest.importorskip("dask_jobqueue")
    dask = pytest.importorskip("dask")
    for name, text in {
        # As Slurm does, it keeps the script: the caller's goes as soon as the job is taken.
        "sbatch": f'job={tmp_path}/$$.job\ncp "$1" $job\n'
        "setsid sh $job >$job.log 2>&1 &\n"
        'echo "Submitted batch job $!"',
        "scancel": 'for job; do kill -- -"$job"; done',  # and all that it started
    }.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asked = {
        "cores": 1,
        "memory": "2GB",
        "queue": "debug",
        "interface": "lo",
        "scheduler-options": {"dashboard_address": "127.0.0.1:0"},
        "local-directory": str(tmp_path),
    }
    with dask.config.set({f"jobqueue.slurm.{key}": value for key, value in asked.items()}):
        cluster = DaskCluster("slurm", 2, 4 << 30, [].append)
        try:
            found = [each for answers in cluster.run([p.cell for p in PLAN]) for each in answers]
        finally:
            cluster.close()

    assert _rows(found) == _rows_here()
    scripts = [file.read_text() for file in tmp_path.glob("*.job")]
    assert len(scripts) == 2
    until(lambda: str(tmp_path) not in _running())
    for words in ("#SBATCH -p debug", "#SBATCH --mem=2G", "dask_worker tcp://", "--nthreads 1"):
        assert all(words in script for script in scripts)


def _running() -> str:
    """The commands that run here."""
    command = ["ps", "-eo", "args"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_worker_that_cannot_compute_ends_the_sweep(dask, monkeypatch):
    """Such as one without simreduce, or with another version of it."""
    address, _, _ = dask
    monkeypatch.setattr("simreduce.study.sweep.engine.work", json.loads)
    cluster = engine(address)()
    try:
        with pytest.raises(EngineGone, match="a worker cannot compute: TypeError"):
            list(cluster.run([PLAN[0].cell]))
    finally:
        cluster.close()
