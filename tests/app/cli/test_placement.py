"""`simreduce tune --placement` and `simreduce topo place`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.app.cli.command import REPOSITORY

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


def _workers(words) -> tuple[object, ...]:
    return () if words[0] == "compare" else ("--workers", 1)


@pytest.fixture
def run(simreduce, folder):  # noqa: ARG001 - it makes the files
    """Runs a command that has an answer."""

    def answer(*words: str) -> str:
        status, out, _ = simreduce(*words, *_workers(words))
        assert status == 0
        return out

    return answer


@pytest.fixture
def faults(simreduce, folder):  # noqa: ARG001 - it makes the files
    """Runs a command that is refused; the faults."""

    def refused(*words: str) -> list[str]:
        status, out, err = simreduce(*words, *_workers(words))
        assert (2, "") == (status, out)
        return [line.removeprefix("simreduce: ") for line in err.splitlines()]

    return refused


def test_the_answer_comes_first(run):
    lines = [line for line in run("tune", "job.toml").splitlines() if not line.startswith("#")]
    found = json.loads(run("tune", "job.toml", "--json"))
    part = f"{found['ratio'] * 100:.0f} %"
    assert lines[0].startswith("Order n")
    assert f" takes {part} of the time of the given order, " in lines[0]
    assert lines[0].endswith(f"this job runs at {part} of the speed of the best order.")
    assert found["ratio"] < 0.5
    assert found["complete"]
    orders = {row["order"]: row for row in found["orders"]}
    assert found["advised"] == orders["by switch"]["nodes"]  # the best saves 0.0001 % more
    assert orders["given"]["nodes"] == ["n0", "n3", "n1", "n4", "n2", "n5"]
    assert orders["best"]["switch_changes"] == 2
    assert orders["given"]["switch_changes"] == 6


def test_free_nodes_and_files(run, folder):
    text = run("tune", "job.toml", "--nodes", "0,3,1,4", "--free", "2,5", "--target", "torchrun")
    assert "--nnodes=4 --nproc-per-node=1" in text
    run("tune", "job.toml", "--out", "files")
    advised = json.loads(run("tune", "job.toml", "--json"))["advised"]
    names = {path.name for path in (folder / "files").iterdir()}
    assert {"hostfile", "mpich-hostfile", "slurm-hostfile", "pod.yaml", "torchrun.sh"} <= names
    picture = (folder / "files" / "ranks.svg").read_text("utf-8")
    assert picture.index(">given<") < picture.index(">advised<")
    hosts = (folder / "files" / "hosts").read_text("utf-8").split()
    assert hosts == advised


def test_real_hosts(run):
    words = "topo", "place", "job.toml", "--nodes", "t.conf", "--hosts", "h[1,4,2,5]", "--json"
    found = json.loads(run(*words))
    assert {*found["advised"][:2]} in ({"h1", "h2"}, {"h4", "h5"})
    assert found["orders"][-1]["nodes"] == ["h1", "h4", "h2", "h5"]


def test_hosts_that_are_named_by_numbers(run, folder):
    text = "SwitchName=a Nodes=12,n12,1\nSwitchName=b Nodes=n1,007,7\nSwitchName=t Switches=a,b\n"
    (folder / "t.conf").write_text(text, "utf-8")
    place = "topo", "place", "job.toml", "--nodes", "t.conf", "--hosts", "12,n1,n12,007,1"
    run(*place, "--free", "7", "--out", "files")
    hosts = (folder / "files" / "hosts").read_text("utf-8").split()
    assert sorted(hosts) == ["007", "1", "12", "n1", "n12"]
    written = {path.name: path.read_text("utf-8") for path in (folder / "files").iterdir()}
    assert written["slurm-hostfile"].split() == hosts
    assert f"--master-addr={hosts[0]} " in written["torchrun.sh"]
    for line in ("12 slots=1", "n1 slots=1"):
        assert line in written["hostfile"].splitlines()
    assert written["mpich-hostfile"].splitlines()[1:] == [f"{host}:1" for host in hosts]
    values = written["pod.yaml"].partition("values:\n")[2].replace("- ", "").split()
    assert [value.strip('"') for value in values] == hosts
    found = json.loads(run(*place, "--json"))
    assert found["advised"] == found["orders"][1]["nodes"]
    assert found["orders"][-1]["nodes"] == ["12", "n1", "n12", "007", "1"]
    assert {*map(frozenset, found["switches"])} == {
        frozenset(["12", "n12", "1"]), frozenset(["n1", "007"])
    }  # fmt: skip


AWS = '{"Instances": [{"InstanceId": "$(true)", "NetworkNodes": ["n"]}]}'
GOOGLE = """[{"name": "a\\nb", "resourceStatus":
  {"physicalHostTopology": {"cluster": "c", "block": "b", "subblock": "s"}}}]"""
INFINIBAND = 'Switch 36 "S-1" # "leaf"\nCa 1 "H-1" # "h: {a: b}"\n[1](a) "S-1"[1]\n'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (AWS, "Instances[0].InstanceId: '$(true)'"),
        (GOOGLE, r"[0].name: 'a\nb'"),
        (INFINIBAND, "line 2: 'h: {a: b}'"),
        ("SwitchName=a Nodes=\x1b,-h", r"line 1: '\x1b'"),
    ],
    ids=["aws", "google", "infiniband", "slurm"],
)
def test_names_of_hosts_that_another_program_would_misread(faults, folder, text, place):
    (folder / "t.conf").write_text(text, "utf-8")
    found = faults("topo", "place", "job.toml", "--nodes", "t.conf", "--out", "files")
    words = "is not a name (1 to 255 letters, digits or any of _ . : / -, the first no -)"
    slurm = [f"t.conf: line 1: '-h' {words}"] * text.startswith("SwitchName")
    assert found == [f"t.conf: {place} {words}", *slurm]
    assert not (folder / "files").exists()


def test_a_folder_has_a_picture_of_the_order(run, folder):
    run("export", "slurm", "job.toml", "--out", "files")
    picture = (folder / "files" / "ranks.svg").read_text("utf-8")
    for name in ("A.0", "A.1", "A.2", "B.3", "B.4", "B.5"):
        assert f">{name}<" in picture
    assert "<svg" not in run("export", "slurm", "job.toml")
    assert "n0\n" in run("export", "torchrun", "gh200")


GIVEN, OTHER = "n0,n3,n1,n4,n2,n5", "n0,n1,n3,n4,n2,n5"


def _save(run, folder, **nodes):
    """Results of both searches, as files that users keep."""
    for name, order in nodes.items():
        text = run("tune", "job.toml", "--nodes", order, "--json")
        (folder / f"{name}.json").write_text(text, "utf-8")


def _alone(run, folder, nodes):
    """Microseconds of the job on nodes, with no search around it."""
    text = SCENARIO.partition("[tune]")[0].replace(GIVEN, nodes)
    (folder / "alone.toml").write_text(text, "utf-8")
    found = json.loads(run("run", "alone.toml", "--algo", "nccl", "--json"))
    return found["candidates"][0]["time_us"]


def test_two_orders_beside_the_best_that_was_found(run, folder):
    _save(run, folder, given=GIVEN, other=OTHER)
    found = json.loads(run("compare", "given.json", "other.json", "--json"))
    best, first, second = found["orders"]
    assert [",".join(each["nodes"]) for each in (first, second)] == [GIVEN, OTHER]
    took = [_alone(run, folder, ",".join(each["nodes"])) for each in found["orders"]]
    assert [each["time_us"] for each in found["orders"]] == pytest.approx(took, rel=1e-12)
    assert [each["speed"] for each in (best, first, second)] == pytest.approx(
        [1.0, took[0] / took[1], took[0] / took[2]]
    )
    assert first["speed"] < 0.5 < second["speed"] < 0.99
    words = (
        f"the order of given.json runs at {took[0] / took[1] * 100:.0f} % of the speed of the best"
        f" order; that of other.json gives {took[0] / took[2] * 100:.0f} %"
    )
    text = run("compare", "given.json", "other.json")
    assert found["answer"] == words
    assert words in text.splitlines()
    assert "(n0) (n3) (n1) (n4) (n2) (n5)" in text
    (folder / "other.json").write_text(
        (folder / "other.json").read_text("utf-8").replace('"complete": true', '"complete": false')
    )
    text = run("compare", "given.json", "other.json")
    assert "of the speed of the best order that was found; " in text
    _save(run, folder, other="n0,n3,n1,n4,n2")
    other = json.loads((folder / "other.json").read_text("utf-8"))
    (folder / "other.json").write_text(json.dumps({**other, "ranks": 6}), "utf-8")
    assert not json.loads(run("compare", "given.json", "other.json", "--json"))["complete"]


def test_orders_of_different_questions_are_not_compared(run, faults, folder):
    _save(run, folder, given=GIVEN)
    given = json.loads((folder / "given.json").read_text("utf-8"))

    def refused(*words, **changes):
        kept = {key: value for key, value in {**given, **changes}.items() if value != "left out"}
        (folder / "other.json").write_text(json.dumps(kept), "utf-8")
        return faults("compare", "given.json", "other.json", *words)

    assert refused(workload="resnet50", batch=32) == [
        "other.json: its workload is 'resnet50', not 'bytes:16MiB'",
        "other.json: its batch is '32', not 'None'",
    ]
    step = SCENARIO.replace("[tune]", '[step]\nbatch = 4\ntime = "{}"\n[tune]')
    for name, time in (("slow", "9 ms"), ("fast", "1 ms")):
        (folder / "step.toml").write_text(step.format(time), "utf-8")
        document = run("tune", "step.toml", "--json")
        (folder / f"{name}.json").write_text(document, "utf-8")
    [why] = faults("compare", "slow.json", "fast.json")
    assert why.startswith("fast.json: its work_digest is ")
    key = "of simreduce tune --placement --json"
    assert refused(orders=given["orders"][:2]) == [f"other.json: lacks 'given' {key}"]
    assert refused(switches=[]) == [f"other.json: lacks 'n0' {key}"]
    assert refused(orders="left out") == [f"other.json: lacks 'orders' {key}"]
    found = refused("--tolerance", "0.1", distinct_orders="left out", advised=1)
    assert found[0] == "--tolerance: is for sweeps; leave it out"
    assert "is no document of simreduce tune --json: advised must be" in found[1]
    best = {**given["orders"][0], "time_us": -1.0}
    assert "orders[0].time_us must be above 0" in refused(orders=[best, *given["orders"][1:]])[0]
    run_document = json.dumps({"command": "run"})
    (folder / "run.json").write_text(run_document, "utf-8")
    [why] = faults("compare", "given.json", "run.json")
    assert why.startswith("run.json: has no order of nodes; compare takes the databases of two ")
    [why] = faults("compare", "given.json", "none.db")
    assert why == "none.db: there is no such file"
    (folder / "some.db").touch()
    [why] = faults("compare", "given.json", "some.db")
    assert why.startswith("given.json, some.db: compare takes the databases of two sweeps, or ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nodes"), [("given", ()), ("other", ("--nodes", "n[0-1,4-5,2-3,6-7]"))]
)
def test_the_saved_results_of_the_page_are_what_tune_prints(simreduce, name, nodes):
    """`SIMREDUCE_UPDATE_GOLDENS=1` writes them anew."""
    folder = REPOSITORY / "docs" / "examples" / "placement"
    saved, scenario = folder / f"{name}.json", folder / "two-units.toml"
    text = simreduce("tune", scenario, *nodes, "--json", "--workers", 1).out
    if os.environ.get("SIMREDUCE_UPDATE_GOLDENS"):
        saved.write_text(text, "utf-8")
    new, old = (
        {**found, "orders": [{**row, "time_us": pytest.approx(row["time_us"])} for row in rows]}
        for found in map(json.loads, (text, saved.read_text("utf-8")))
        for rows in [found["orders"]]
    )
    assert new == old


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
    found = faults("tune", "dgx1v-resnet50", "--free", "0")
    assert found == ["--free: needs placement = true, or --placement"]


MESH = """
topology = "dgx-h100x2"
workload = "transformer:layers=4,hidden=2048,heads=16,vocab=32000,seq=2048"
step = {global_batch = 16, mesh = "tp=8,dp=2"}
[tune]
placement = true
"""


def test_all_of_a_mesh_is_checked_before_it_is_simulated(faults, folder, monkeypatch):
    monkeypatch.setattr("simreduce.app.cli.run.rank_meshes", pytest.fail)
    (folder / "job.toml").write_text(MESH, "utf-8")
    found = faults("tune", "job.toml", "--target", "slurn", "--out", "a/b", "--budget", "soon")
    assert [each.partition(": ")[0] for each in found] == [
        "--out", "--target slurn", "--budget",
    ]  # fmt: skip
    (folder / "t.conf").write_text("SwitchName=a Nodes=h[1-2]\n", "utf-8")
    found = faults("topo", "place", "job.toml", "--nodes", "t.conf", "--hosts", "h1")
    words = "8 GPUs, and meshes of the scenario are on 16; its key nodes says on which nodes"
    assert found == [f"--hosts: {words}"]


@pytest.mark.slow
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
    assert faults("tune", "job.toml") == [
        "job.toml: tune.free: needs placement = true, or --placement"
    ]


@pytest.mark.slow
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
