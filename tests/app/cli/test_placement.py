"""`simreduce tune --placement` and `simreduce topo place`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCENARIO = """
topology = "gh200x6,fabric=fat_tree,radix=3,oversubscription=3"
workload = "bytes:16MiB"
nodes = "n0,n3,n1,n4,n2,n5"
[tune]
placement = true
"""
CONF = "SwitchName=a Nodes=h[1-3]\nSwitchName=b Nodes=h[4-6]\nSwitchName=t Switches=a,b\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "job.toml").write_text(SCENARIO, "utf-8")
    (tmp_path / "t.conf").write_text(CONF, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(simreduce, folder):  # noqa: ARG001 - it makes the files
    """Runs a command that has an answer."""

    def answer(*words: str) -> str:
        status, out, _ = simreduce(*words, "--workers", 1)
        assert status == 0
        return out

    return answer


@pytest.fixture
def faults(simreduce, folder):  # noqa: ARG001 - it makes the files
    """Runs a command that is refused; the faults."""

    def refused(*words: str) -> list[str]:
        status, out, err = simreduce(*words, "--workers", 1)
        assert (2, "") == (status, out)
        return [line.removeprefix("simreduce: ") for line in err.splitlines()]

    return refused


def test_the_answer_comes_first(run):
    lines = [line for line in run("tune", "job.toml").splitlines() if not line.startswith("#")]
    found = json.loads(run("tune", "job.toml", "--json"))
    part = f"{found['ratio'] * 100:.0f} %"
    assert lines[0].startswith("order n")
    assert f" takes {part} of the time of the given order, " in lines[0]
    assert lines[0].endswith(f"this job runs at {part} of its speed")
    assert found["ratio"] < 0.5
    assert found["complete"]
    assert found["advised"] == found["orders"][0]["nodes"]
    orders = {row["order"]: row for row in found["orders"]}
    assert orders["given"]["nodes"] == ["n0", "n3", "n1", "n4", "n2", "n5"]
    assert orders["best"]["switch_changes"] == 2
    assert orders["given"]["switch_changes"] == 6


def test_free_nodes_and_files(run, folder):
    text = run("tune", "job.toml", "--nodes", "0,3,1,4", "--free", "2,5", "--target", "torchrun")
    assert "--nnodes=4 --nproc-per-node=1" in text
    run("tune", "job.toml", "--out", "files")
    advised = json.loads(run("tune", "job.toml", "--json"))["advised"]
    names = {path.name for path in (folder / "files").iterdir()}
    assert {"hostfile", "rankfile", "slurm-hostfile", "pod.yaml", "torchrun.sh"} <= names
    hosts = (folder / "files" / "hosts").read_text("utf-8").split()
    assert hosts == advised


def test_real_hosts(run):
    words = "topo", "place", "job.toml", "--nodes", "t.conf", "--hosts", "h[1,4,2,5]", "--json"
    found = json.loads(run(*words))
    assert {*found["advised"][:2]} in ({"h1", "h2"}, {"h4", "h5"})
    assert found["orders"][-1]["nodes"] == ["h1", "h4", "h2", "h5"]


def test_every_fault_at_once(faults):
    found = faults("tune", "job.toml", "--nodes", "n[0-6]", "--fp16", "--target", "slurn")
    assert [each.partition(";")[0].partition(" (")[0] for each in found] == [
        "--fp16: says nothing about the order of nodes",
        "--nodes: gh200x6,fabric=fat_tree,radix=3,oversubscription=3 has no node 'n6'",
        "--target slurn: starts no ranks",
    ]
    words = "--nodes", "t.conf", "--hosts", "h9,h1,h1", "--free", "hh2", "--topology", "gh200x0"
    found = faults("topo", "place", "job.toml", *words)
    assert [each.partition("; it")[0] for each in found] == [
        "--topology: gh200x0: 0 machines; at least 1 is needed",
        "--hosts: t.conf names no host 'h9'",
        "--hosts: h1 is named twice",
        "--free: t.conf names no host 'hh2' (did you mean 'h2'?)",
    ]
    found = faults("tune", "dgx1v-resnet50", "--free", "1")
    assert found == ["--free: needs --placement"]


MESH = """
topology = "dgx-h100x2"
workload = "transformer:layers=4,hidden=2048,heads=16,vocab=32000,seq=2048"
step = {global_batch = 16, mesh = "tp=8,dp=2"}
[tune]
placement = true
"""


def test_all_of_a_mesh_is_checked_before_it_is_simulated(faults, folder, monkeypatch):
    monkeypatch.setattr("simreduce.app.cli.placement.rank_meshes", pytest.fail)
    (folder / "job.toml").write_text(MESH, "utf-8")
    found = faults("tune", "job.toml", "--target", "slurn", "--out", "a/b", "--budget", "soon")
    assert [each.partition(": ")[0] for each in found] == [
        "--target slurn", "--out", "--budget",
    ]  # fmt: skip
    (folder / "t.conf").write_text("SwitchName=a Nodes=h[1-2]\n", "utf-8")
    found = faults("topo", "place", "job.toml", "--nodes", "t.conf", "--hosts", "h1")
    assert found == ["--hosts: 8 GPUs, and meshes of the scenario are on 16; its key nodes says on"
                     " which nodes"]  # fmt: skip


def test_a_mesh_on_the_hosts_of_its_nodes(run, folder):
    machine = "x3,fabric=rail_optimised,unit=2"
    text = MESH.replace("x2", machine).replace("[tune]", 'nodes = "0,2"\n[tune]')
    (folder / "job.toml").write_text(text, "utf-8")
    (folder / "t.conf").write_text("SwitchName=a Nodes=h[1-2]\nSwitchName=b Nodes=h3\n", "utf-8")
    words = "topo", "place", "job.toml", "--nodes", "t.conf", "--hosts", "h[1,3]", "--json"
    assert json.loads(run(*words))["orders"][-1]["nodes"] == ["h1", "h3"]


@pytest.mark.parametrize("text", [SCENARIO, MESH], ids=["plain", "mesh"])
def test_free_nodes_are_checked_whatever_else_is_wrong(text, faults, folder):
    wrong = text.replace("placement = true", 'placement = "yes"\nfree = "n8"')
    (folder / "wrong.toml").write_text(wrong, "utf-8")

    def places(*words):
        return [each.partition(" has no node")[0].partition(" must")[0] for each in words]

    machine = text.split('"')[1]
    found = faults("tune", "wrong.toml", "--nodes", "n9")
    assert sorted(places(*found)) == [
        f"--nodes: {machine}",
        f"wrong.toml: tune.free: {machine}",
        "wrong.toml: tune.placement:",
    ]
    (folder / "job.toml").write_text(text, "utf-8")
    found = faults("tune", "job.toml", "--placement", "--nodes", "n9", "--free", "zz7")
    assert places(*found) == [f"--nodes: {machine}", f"--free: {machine}"]


def test_free_needs_placement_unless_that_is_what_is_wrong(faults, folder):
    (folder / "job.toml").write_text(SCENARIO.replace("placement = true", 'free = "n5"'), "utf-8")
    assert faults("tune", "job.toml") == ["job.toml: tune.free: needs placement = true"]


def test_the_answer_does_not_hang_on_hashes(folder):
    words = [sys.executable, "-m", "simreduce", "tune", "job.toml", "--json", "--free", "n1"]
    answers = {
        subprocess.run(
            words, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=folder, capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(answers) == 1
