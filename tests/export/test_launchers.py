"""The order of nodes as MPI, Slurm, Kubernetes and torchrun read it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.export import export, find_target
from simreduce.export.frameworks import FRAMEWORKS, LAUNCHERS
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import Question, choice_of
from simreduce.workload.loader import load_workload

MACHINE = "abci-vx4,fabric=fat_tree,radix=4,nics=2"


def files(name: str, order: tuple[int, ...] = (2, 0, 3)) -> Mapping[str, str]:
    setup = Setup(MACHINE, "nccl")
    setup = setup.but(part=layout(setup.machine).on(order))
    asked = Question(parse_strategy("nccl"), load_workload("bytes:1MiB"), setup)
    return export(name, choice_of(asked, None))


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_open_mpi_has_the_hosts_with_their_slots() -> None:
    found = files("openmpi")
    assert rows(found["hostfile"]) == ["n2 slots=4", "n0 slots=4", "n3 slots=4"]
    assert "mpirun -np 12 --hostfile hostfile --map-by slot" in found["mpirun.sh"]


@pytest.mark.parametrize(
    ("version", "host", "runs"),
    [("4.1.4", "n2", True), ("4.1.4", "n0", False), ("5.0.11", "n0", True)],
)
def test_open_mpi_4_runs_on_the_first_host_only(tmp_path, version, host, runs) -> None:
    """It has the first ranks wherever mpirun runs."""
    said = f'[ "$1" = --version ] && echo "mpirun (Open MPI) {version}" || echo "ran $@"'
    ran = _run(tmp_path, files("openmpi"), "mpirun.sh", mpirun=said, hostname=f"echo {host}")
    assert (ran.returncode == 0) == ("ran -np 12" in ran.stdout) == runs
    assert ("run this on n2" in ran.stderr) != runs


def test_mpich_has_its_own_form_of_hosts() -> None:
    found = files("mpich")
    assert rows(found["mpich-hostfile"]) == ["n2:4", "n0:4", "n3:4"]
    assert "mpiexec -f mpich-hostfile -n 12 " in found["mpiexec.sh"]


def _run(tmp_path, found, script, **programs):
    """A script of these files, with programs that are shell scripts of one line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (folder / name).chmod(0o755)
    for name, text in found.items():
        (tmp_path / name).write_text(text, "utf-8")
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", script], cwd=tmp_path, env=path, capture_output=True, text=True, check=False
    )


def test_slurm_has_a_host_for_each_task() -> None:
    found = files("slurm")
    assert found["slurm-hostfile"].split() == ["n2"] * 4 + ["n0"] * 4 + ["n3"] * 4
    assert 'export SLURM_HOSTFILE="$PWD/slurm-hostfile"' in found["slurm.sh"]
    assert "srun --distribution=arbitrary --nodes=3 --ntasks=12" in found["slurm.sh"]


@pytest.mark.parametrize(
    ("order", "switches", "word"), [((2, 0, 3), 2, "preferred"), ((1, 0), 1, "required")]
)
def test_how_many_switches_the_nodes_are_below(
    order: tuple[int, ...], switches: int, word: str
) -> None:
    assert f"#SBATCH --switches={switches}\n" in files("slurm", order)["slurm.sh"]
    assert f"kueue.x-k8s.io/podset-{word}-topology" in files("kubernetes", order)["pod.yaml"]


def test_kubernetes_has_the_nodes() -> None:
    found = files("kubernetes")
    assert "key: kubernetes.io/hostname" in found["pod.yaml"]
    assert re.findall(r"- (n\d)\n", found["pod.yaml"]) == ["n2", "n0", "n3"]
    assert found["hosts"].split() == ["n2", "n0", "n3"]


def test_torchrun_counts_the_line_of_a_host() -> None:
    found = files("torchrun")
    assert found["hosts"].split() == ["n2", "n0", "n3"]
    assert "--nnodes=3 --nproc-per-node=4" in found["torchrun.sh"]
    assert "--master-addr=n2" in found["torchrun.sh"]


@pytest.mark.parametrize(
    ("names", "rank"), [(("n0", "n0.rack"), "1"), (("other", "n3"), "2"), (("n4", "n4"), None)]
)
def test_a_host_finds_its_rank_by_either_name_or_stops(tmp_path, names, rank) -> None:
    said = f'[ "$1" = -f ] && echo {names[1]} || echo {names[0]}'
    ran = _run(tmp_path, files("torchrun"), "torchrun.sh", torchrun='echo "$@"', hostname=said)
    assert (ran.returncode == 0) == (rank is not None)
    assert (f"--node-rank={rank}" in ran.stdout) == (rank is not None)
    assert ("is not in hosts" in ran.stderr) == (rank is None)


def test_no_file_of_a_launcher_is_anothers() -> None:
    """`tune --out` writes those of all into one folder."""
    written = [each for name in LAUNCHERS for each in files(name).items()]
    assert len(dict(written)) == len(set(written))


def test_launchers_are_targets() -> None:
    assert all(find_target(name) is FRAMEWORKS[name] for name in LAUNCHERS)
    with pytest.raises(StrategyError, match="did you mean 'slurm'"):
        find_target("slurn")
