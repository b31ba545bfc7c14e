"""Jobs and traffic from a file: what each key means, and every fault at once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import simpy

from simreduce.engine import Fabric
from simreduce.engine.background import TrafficFlows, excess_messages
from simreduce.errors import InputError, ScenarioError
from simreduce.report.jobs import BESIDE, jobs_text
from simreduce.study.job_files import build_jobs, elsewhere, load_jobs
from simreduce.study.scenario_files import build_meshes, build_scenario, read_scenario_file
from simreduce.study.tune.jobs import MOST_COMPARED, MOST_PLACED, answer_jobs, fit_jobs
from simreduce.study.tune.rank import rank
from simreduce.training.mesh.passes import Costs
from simreduce.training.mesh.write import simulate_mesh
from simreduce.training.shared_fabric import simulate_jobs
from tests.thorough import slow

NAME = "dgx1vx4,fabric=switch,nics=1"
MACHINE = f'topology = "{NAME}"\n'
TWO = (
    MACHINE + '[[job]]\nname = "a"\nnodes = 2\nworkload = "bytes:16M"\ncount = 2\n'
    '[[job]]\nname = "b"\nnodes = "2-3"\nworkload = "alexnet"\nstrategy = "nccl+ddp"\ncount = 2\n'
    'start = "1 ms"\nstep = {batch = 8, time = "20 ms"}\n'
)
INCAST = (
    '[[traffic]]\nname = "x"\npattern = "incast"\nto = [0]\nsize = "1 MiB"\n'
)  # fmt: skip


def read(tmp_path, text):
    path = tmp_path / "jobs.toml"
    path.write_text(text, "utf-8")
    return load_jobs(str(path))


def faults(tmp_path, text):
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, text)
    return [problem.partition("jobs.toml: ")[2] for problem in caught.value.problems]


def test_jobs_have_their_nodes_and_what_they_repeat(tmp_path):
    found = read(tmp_path, TWO)
    first, second = found.jobs

    assert found.nodes == ((0, 1), (2, 3))
    assert first.setup.layout.ranks[0] == "n0.gpu0"
    assert second.setup.layout.ranks[0] == "n2.gpu0"
    assert (first.step, first.start, first.count) == (None, 0.0, 2)
    assert second.step is not None
    assert second.start == 1e-3


def test_a_count_of_nodes_takes_those_that_nobody_names(tmp_path):
    text = TWO.replace('"2-3"', "[0, 2]")

    assert read(tmp_path, text).nodes == ((1, 3), (0, 2))


@pytest.mark.parametrize(
    ("pattern", "more", "pairs", "first"),
    [
        ("incast", "to = [0]", 24, ("n1.gpu0", "n0.gpu0")),
        ("all_to_all", "nodes = 2", 128, ("n0.gpu0", "n1.gpu0")),
        ("writes", "to = [3]", 3, ("n0.cpu0", "n3.cpu0")),
        ("reads", "to = [3]", 3, ("n3.cpu0", "n0.cpu0")),
        ("writes", 'to = [3]\nends = "gpus"', 24, ("n0.gpu0", "n3.gpu0")),
    ],
)
def test_patterns_say_who_sends_to_whom(tmp_path, pattern, more, pairs, first):
    text = f'[[traffic]]\nname = "x"\npattern = "{pattern}"\nsize = "1 MB"\n{more}\n'
    (stream,) = read(tmp_path, TWO + text).streams

    assert len(stream.pairs) == pairs
    assert stream.pairs[0] == first


def test_a_permutation_sends_from_and_to_every_device_once(tmp_path):
    text = '[[traffic]]\nname = "x"\npattern = "permutation"\nsize = "1 MB"\nseed = {}\n'
    found = [read(tmp_path, TWO + text.format(seed)).streams[0].pairs for seed in range(6)]

    for pairs in found:
        sources, targets = zip(*pairs, strict=True)
        assert len(pairs) == 32
        assert sorted(sources) == sorted(targets)
        assert all(a.split(".")[0] != b.split(".")[0] for a, b in pairs)
    assert len(set(found)) > 1


def test_every_fault_is_said_at_once(tmp_path):
    text = (
        MACHINE + '[[job]]\nname = "a"\nnodes = [0, 7]\nworkload = "alexnett"\n'
        '[[job]]\nname = "b"\nnodes = "0"\nworkload = "alexnet"\nstrategy = "rign"\nstrat = 1\n'
        '[[traffic]]\nname = "x"\npattern = "incats"\nsize = "1 MB"\n'
    )
    found = faults(tmp_path, text)
    whole = "\n".join(found)

    assert any(each.startswith("job[0].workload: ") and "alexnet" in each for each in found)
    assert any(each.startswith("job[1].strategy: ") and "ring" in each for each in found)
    assert any(each.startswith("job[1].strat: unknown key") for each in found)
    assert any(each.startswith("traffic[0].pattern: ") and "incast" in each for each in found)
    assert any(each.startswith(f"job[0].nodes: {NAME} has no node '7'") for each in found)
    assert "job[1].nodes: job[0] has node n0 too" in found
    assert whole.count("alexnett") == 1


def test_what_is_missing_empty_or_nothing_is_one_fault_each(tmp_path):
    text = MACHINE.replace("topology", "topolgy") + (
        '[[job]]\nname = ""\nnodes = 5\nworkload = "bytes:1M"\n'
        '[[job]]\nname = "b"\nnodes = 1\nworklod = "bytes:1M"\n'
        '[[traffic]]\nname = "x"\npattern = "permutation"\nsize = "1 MB"\nrate = "0 GB/s"\n'
    )
    keys = [each.partition(":")[0] for each in faults(tmp_path, text)]
    assert sorted(keys) == [
        "job[0].name", "job[1].workload", "job[1].worklod", "topolgy", "topology",
        "traffic[0].rate",
    ]  # fmt: skip
    too_many = TWO.replace("nodes = 2\n", "nodes = 5\n").replace('"2-3"', "4")
    assert faults(tmp_path, too_many) == ["job[0].nodes: 5 nodes asked for, and 4 of 4 are free"]


def test_a_machine_that_is_not_known_is_said_once(tmp_path):
    found = faults(tmp_path, TWO.replace("dgx1vx4", "dgx9vx4"))

    assert len(found) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"2-3"', '"1-2"'), "1 of 4 are free|2 asked for"),
        (('"2-3"', '"3-4"'), f"job[1].nodes: {NAME} has no node '4'"),
        (('name = "b"', 'name = "a"'), "job[1].name: job[0] is named 'a' too"),
        (("nodes = 2", "nodes = true"), "must be how many, a list"),
        (("nodes = 2", "nodes = 3"), "3 nodes asked for, and 2 of 4 are free"),
        (("nodes = 2", "nodes = [2]"), "job[1].nodes: job[0] has node n2 too"),
        (('"2-3"', '"2-2,2"'), "job[1].nodes: n2 is named twice"),
    ],
)
def test_nodes_that_cannot_be_are_refused(tmp_path, change, words):
    if "1-2" in change[1]:
        assert read(tmp_path, TWO.replace(*change)).nodes == ((0, 3), (1, 2))
        return
    assert any(words in each for each in faults(tmp_path, TWO.replace(*change)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "traffic[0].to: missing"),
        ("to = [9]", f"traffic[0].to: {NAME} has no node '9'"),
        ('to = [0]\nrate = "1 GB/s"\nevery = "1 s"', "give one of rate and every"),
    ],
)
def test_traffic_that_cannot_be_is_refused(tmp_path, more, words):
    text = TWO + INCAST.replace("to = [0]\n", f"{more}\n")

    assert any(words in each for each in faults(tmp_path, text))


def test_sharded_steps_are_refused(tmp_path):
    text = TWO.replace("batch = 8,", 'batch = 8, method = "fsdp",').replace("nccl+ddp", "nccl")

    assert any("ddp" in each for each in faults(tmp_path, text))


def test_a_file_without_jobs_says_so(tmp_path):
    assert any(each.startswith("job: missing") for each in faults(tmp_path, MACHINE))


def test_the_answer_names_the_slowest_and_whom_it_meets(tmp_path):
    question = read(tmp_path, TWO + INCAST)
    found = answer_jobs(question)
    text, document = jobs_text(found), BESIDE.write(found)

    assert "a takes" in text
    assert "it meets x on" in text
    assert document["jobs"][0]["slowdown"] > 1.2
    assert document["jobs"][0]["shared"][0]["others"]["x"] > 0.0
    assert document["traffic"][0]["pairs"] == 24
    assert 0.5 < document["fairness"] <= 1.0
    json.dumps(document)


MIX = (
    'topology = "dgx1vx12,fabric=fat_tree,nics=1,oversubscription=4,radix=4"\n'
    '[[job]]\nname = "a"\nnodes = 5\nworkload = "bytes:16M"\ncount = 2\n'
)


@pytest.mark.parametrize(
    ("promise", "copies", "limit"),
    [(1.05, 1, "with 2, a"), (10.0, 2, "10 of 12 nodes are taken")],
)
def test_copies_fit_until_one_is_too_slow_or_nodes_run_out(tmp_path, promise, copies, limit):
    """The fifth node of the first copy and three of the second are under one leaf with one
    up-link.
    """
    path = tmp_path / "mix.toml"
    path.write_text(MIX, "utf-8")
    *_, found = fit_jobs(*read_scenario_file(str(path)), promise)
    text = jobs_text(found)

    assert found.fit.copies == copies == len(found.question.jobs)
    assert found.fit.limit.startswith(limit)
    assert found.complete
    assert f"{copies} cop" in text
    assert all(each.slowdown <= promise for each in found.outcomes)


def test_a_copy_is_compared_with_itself_alone(tmp_path):
    """Also where another job has the name that it would have."""
    path = tmp_path / "mix.toml"
    jobs = {"sum": "64M", "sum 2": "1M"}
    path.write_text(
        'topology = "dgx1vx4"\n'
        + "".join(
            f'[[job]]\nname = "{name}"\nnodes = 1\nworkload = "bytes:{size}"\ncount = 1\n'
            for name, size in jobs.items()
        )
    )
    *_, found = fit_jobs(*read_scenario_file(str(path)), 1.01)

    assert found.fit.copies == 2
    assert len({each.job.name for each in found.outcomes}) == 4
    assert all(each.slowdown == pytest.approx(1.0) for each in found.outcomes)


def test_too_many_copies_are_one_fault(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(MIX, "utf-8")
    with pytest.raises(ScenarioError) as caught:
        build_jobs(*read_scenario_file(str(path)), copies=9)

    words = "9 copies need 45 nodes, and the machine has 12 nodes"
    assert caught.value.problems == (f"{path}: job: {words}",)


def test_jobs_that_name_their_nodes_cannot_be_copied(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(MIX.replace("nodes = 5", '"nodes" = "0-4"'), "utf-8")
    with pytest.raises(ScenarioError, match="say how many nodes"):
        next(fit_jobs(*read_scenario_file(str(path)), 1.1))


MESH = (
    'topology = "dgx-h100x4,fabric=fat_tree"\n[[job]]\nname = "m"\nnodes = 2\ncount = 1\n'
    'workload = "transformer:layers=4,hidden=2048,heads=16,vocab=32000,seq=2048"\n'
    "[job.step]\nglobal_batch = 16\n"
)


@pytest.mark.parametrize(
    "mesh", ["tp=8,dp=2", *slow(["tp=4,pp=2,dp=2", "dp=16", "tp=2,cp=2,dp=4"])]
)
def test_a_mesh_with_all_its_calls_on_the_fabric_takes_what_one_rank_for_all_does(tmp_path, mesh):
    question = read(tmp_path, MESH + f'mesh = "{mesh}"\n')
    (found,) = simulate_jobs(question.jobs)
    step = {"mesh": mesh, "global_batch": 16}
    table = {"topology": "dgx-h100x2,fabric=fat_tree", "step": step}
    table["workload"] = "transformer:layers=4,hidden=2048,heads=16,vocab=32000,seq=2048"
    alone = build_meshes(tmp_path / "mesh.toml", table)

    costs = Costs(alone.setup, alone.job.mesh)
    expected = simulate_mesh(alone.job, costs).seconds
    assert found.times[0] == found.alone == pytest.approx(expected, rel=0.05)
    assert question.does == (f"step of {alone.model.name}, {mesh}",)


def test_a_mesh_meets_others_on_the_fabric(tmp_path):
    more = 'mesh = "dp=16"\n[[job]]\nname = "b"\nnodes = 2\nworkload = "bytes:1G"\ncount = 5\n'
    text = (MESH + more).replace("nodes = 2", "nodes = [0, 2]", 1)
    machine = "dgx1vx4,nics=1,fabric=fat_tree,oversubscription=2,radix=2"
    question = read(tmp_path, text.replace("dgx-h100x4,fabric=fat_tree", machine))
    mesh, _ = simulate_jobs(question.jobs)

    assert "b" in mesh.shared[0].others


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('mesh = "tp=8,dp=3"\n', "job[0].step"),
        ('mesh = ["tp=8,dp=2", "dp=16"]\n', "one mesh"),
        (
            'mesh = "tp=8,dp=2"\nsequence_parallel = false\ntensor_all_reduce = "oneshot"\n',
            "jobs take calls of NCCL",
        ),
    ],
)
def test_meshes_that_cannot_be_are_refused(tmp_path, more, words):
    assert any(words in each for each in faults(tmp_path, MESH + more))


def test_checkpoints_and_loaders_are_traffic_of_their_job(tmp_path):
    stored = (
        '[job.checkpoint]\nsize = "100 MB"\nevery = "25 ms"\nto = [3]\n'
        '[job.reads]\nrate = "4 GB/s"\nto = [3]\n'
    )
    text = TWO.partition('[[job]]\nname = "b"')[0]
    plain, found = (simulate(read(tmp_path, text + more)) for more in ("", stored))
    question = read(tmp_path, text + stored)
    writes, reads = question.streams

    assert (writes.name, reads.name) == ("a's checkpoint", "a's reads")
    assert writes.pairs == (("n0.cpu0", "n3.cpu0"), ("n1.cpu0", "n3.cpu0"))
    assert reads.pairs == (("n3.cpu0", "n0.cpu0"), ("n3.cpu0", "n1.cpu0"))
    assert (writes.period, reads.rate, reads.nbytes) == (25e-3, 4e9, 1 << 20)
    assert found > 1.1 * plain


def simulate(question):
    return simulate_jobs(question.jobs, question.streams)[0].seconds


@pytest.mark.parametrize("key", ["size", "every", "to"])
def test_what_a_checkpoint_lacks_is_said(tmp_path, key):
    lines = {"size": '"1 MB"', "every": '"1 s"', "to": "[3]"}
    more = "".join(f"{name} = {value}\n" for name, value in lines.items() if name != key)
    text = TWO.partition('[[job]]\nname = "b"')[0] + f"[job.checkpoint]\n{more}"

    assert any(f"job[0].checkpoint.{key}: missing" in each for each in faults(tmp_path, text))


def test_traffic_that_would_pile_up_is_refused_with_its_link_and_key(tmp_path):
    loader = '[job.reads]\nrate = "1 TB/s"\nto = [0]\n'
    text = TWO.replace("start =", "\nstart =") + loader
    text += INCAST + 'rate = "1 TB/s"\n' + INCAST.replace('"x"', '"y"') + 'every = "1 us"\n'
    found = faults(tmp_path, text)

    assert [each.partition(": offers ")[0] for each in found] == [
        "traffic[0].rate", "traffic[1].every", "job[1].reads.rate",
    ]  # fmt: skip
    assert all("n0.mlx5_0" in each and "% of what it carries" in each for each in found)


@pytest.mark.parametrize(
    ("more", "key", "change"),
    [
        ("", "size", "a larger size, or a rate, makes fewer"),
        ('rate = "100 MB/s"', "size", "a larger size or a lower rate makes fewer"),
        ('every = "200 ns"', "every", "a longer time between bursts makes fewer"),
    ],
)
def test_more_messages_than_can_be_simulated_are_refused(tmp_path, more, key, change):
    text = TWO.replace("count = 2", "count = 100") + INCAST.replace("1 MiB", "1 B") + f"{more}\n"
    question = read(tmp_path, text)
    with pytest.raises(InputError) as caught:
        simulate_jobs(question.jobs, question.streams)

    (problem,) = caught.value.problems
    _, words, why = problem.rpartition(f"jobs.toml: traffic[0].{key}: about ")
    count, _, rest = why.partition(" messages of 1 B while the jobs run, and at most 20,000")
    assert words
    assert 1_000_000 < int(count.replace(",", "")) < 1_000_000_000
    assert rest.endswith(change)


def test_too_many_messages_are_said_beside_other_faults(tmp_path):
    """As far as they are sure to come, whatever the jobs wait for."""
    more = INCAST.replace("1 MiB", "1 B") + 'every = "200 ns"\n'
    text = TWO.replace("count = 2", "count = 1000").replace('name = "b"', 'name = "x"') + more
    found = faults(tmp_path, text)

    assert [each.partition(": about ")[0] for each in found] == [
        "traffic[0].name: job[1] is named 'x' too", "traffic[0].every",
    ]  # fmt: skip
    assert len(faults(tmp_path, text.replace("200 ns", "200 ms"))) == 1


def test_all_traffic_that_sends_its_share_of_too_many_messages_is_named(tmp_path):
    """Two that send alike, and not the third, whose messages are few."""
    every = {"x": "200 ns", "y": "200 ns", "z": "1 s"}
    burst = INCAST.replace("1 MiB", "1 B")
    bursts = (f'{burst.replace("x", name, 1)}every = "{time}"\n' for name, time in every.items())
    question = read(tmp_path, "".join([TWO, *bursts]))
    setup = question.setup.running(None)
    flows = TrafficFlows(
        Fabric(simpy.Environment(), setup.topology, setup.constants, setup.runtime)
    )
    few, many = (
        excess_messages([(stream, flows) for stream in question.streams], seconds)
        for seconds in (0.00005, 0.1)
    )

    assert [] == few
    assert ["traffic[0].every", "traffic[1].every"] == [each.split(": ")[1] for each in many]


def test_messages_are_counted_before_they_are_simulated(tmp_path, monkeypatch):
    """Of jobs that traffic hardly slows, about as many come as were counted."""
    job = '[[job]]\nname = "a"\nnodes = 2\nworkload = "bytes:1M"\ncount = 2\n'
    question = read(tmp_path, MACHINE + job + INCAST.replace("1 MiB", "1 B"))
    sent = []
    send = TrafficFlows.send
    monkeypatch.setattr(TrafficFlows, "send", lambda *args: sent.append(1) or send(*args))
    outcomes = simulate_jobs(question.jobs, question.streams)
    seconds = max(each.job.start + sum(each.times) for each in outcomes)

    stream, setup = question.streams[0], question.setup.running(None)
    flows = TrafficFlows(
        Fabric(simpy.Environment(), setup.topology, setup.constants, setup.runtime)
    )
    assert stream.messages(flows, seconds) == pytest.approx(len(sent), rel=0.05)


def test_nodes_go_by_their_names_too(tmp_path):
    text = TWO.replace("nodes = 2", 'nodes = "n[0-1]"').replace('"2-3"', '["n3", 2]')
    text += INCAST.replace("to = [0]", 'to = "n3"\nnodes = "n0,2"')
    question = read(tmp_path, text)

    assert question.nodes == ((0, 1), (3, 2))
    assert {(a[:2], b[:2]) for a, b in question.streams[0].pairs} == {("n0", "n3"), ("n2", "n3")}


def test_a_node_that_has_failed_is_nobodys(tmp_path):
    """Jobs that say how many they have start again on others; one that names it stops."""
    text = 'fails = "n0"\n' + TWO.replace("nodes = 2", "nodes = 1")
    whole = read(tmp_path, text)
    assert [job.setup.layout.ranks[0] for job in whole.jobs] == ["n0.gpu0", "n2.gpu0"]
    left = whole.without("n0")
    assert [job.setup.layout.ranks[0] for job in left.jobs] == ["n1.gpu0", "n2.gpu0"]
    stopped = answer_jobs(read(tmp_path, text.replace('"2-3"', "[0, 2]")))
    document = BESIDE.write(stopped)

    assert document["answer"] == "b stops if n0 fails: b: its node n0 has failed."
    assert [each["slowdown"] for each in document["jobs"]] == [pytest.approx(1.0, abs=0.01), None]
    assert [each["by_neighbours"] for each in document["jobs"]] == pytest.approx([1.0, 1.0])
    assert jobs_text(stopped).count("stops") >= 4


CUT = 'topology = "dgx1vx8,fabric=fat_tree,radix=4,oversubscription=4,nics=1"\n' + "".join(
    f'[[job]]\nname = "{name}"\nnodes = "{nodes}"\nworkload = "bytes:{size}"\ncount = 2\n'
    for name, nodes, size in (("a", "0,4", "16M"), ("b", "1,5", "64M"), ("c", "2-3", "4M"))
)


def test_only_jobs_that_need_a_part_stop_with_it(tmp_path):
    """Others take as long as beside each other only."""
    found = answer_jobs(read(tmp_path, f'fails = "n1.mlx5_0"\n{CUT}'))
    a, b, c = CUT.partition("[[job]]")[0], *CUT.split("[[job]]")[1::2]
    two = answer_jobs(read(tmp_path, f"{a}[[job]]{b}[[job]]{c}"))
    [failure], rows = found.failures, BESIDE.write(found)["jobs"]

    reason = "b: its node n1 is cut off"
    assert (failure.stops, failure.part, failure.reason) == (["b"], "n1.mlx5_0", reason)
    assert found.loss == f"b stops if n1.mlx5_0 (of b) fails: {reason}"
    assert [rows[0]["failed_s"], rows[2]["failed_s"]] == [each.seconds for each in two.outcomes]
    assert rows[1]["failed_s"] is rows[1]["slowdown"] is None
    assert rows[0]["slowdown"] < found.outcomes[0].by_neighbours  # without the one that it met


def test_each_job_is_shown_with_the_part_that_stops_it(tmp_path):
    """Of a class, and of all, the part that stops more jobs is worse."""
    found = answer_jobs(read(tmp_path, f'fails = ["nic", "leaf"]\n{CUT}'))
    nic, leaf = BESIDE.write(found)["failures"]

    assert [(each["job"], each["part"], each["slowdown"]) for each in nic["worst"]] == [
        ("a", "n0.mlx5_0", None), ("b", "n1.mlx5_0", None), ("c", "n2.mlx5_0", None),
    ]  # fmt: skip
    assert (nic["stops"], leaf["part"], leaf["stops"]) == (["a"], "leaf0", ["a", "b", "c"])
    assert found.loss.startswith("the jobs stop if leaf0 fails: ")
    lines = jobs_text(found).partition("worst for it is repaired")[2].splitlines()
    assert ["b", "n1.mlx5_0", "stops"] in [line.split() for line in lines]


def test_jobs_for_which_there_is_no_room_together_all_stop(tmp_path):
    text = TWO.replace('"2-3"', "2")
    found = answer_jobs(read(tmp_path, f'fails = "n0"\n{text}'))

    assert found.lost.stops == ["a", "b"]
    assert found.loss.startswith(
        "the jobs stop if n0 fails: b: 2 nodes asked for, and 1 of 3 are free"
    )


SMALL = "".join(
    f'[[job]]\nname = "{name}"\nnodes = {nodes}\nworkload = "bytes:16M"\ncount = 1\n'
    for name, nodes in (("one", 1), ("a", 2), ("b", 2))
)


@pytest.mark.parametrize("part", ["n0.mlx5_0", "n2.mlx5_0"])
def test_a_node_without_its_only_nic_counts_as_lost(tmp_path, part):
    """But for a job of one node, which leaves the others to those that need several."""
    text = f'topology = "dgx-a100x5,fabric=fat_tree,radix=6,nics=1"\nfails = "{part}"\n{SMALL}'
    question = read(tmp_path, text)
    found, cut = answer_jobs(question), int(part[1])

    assert (found.lost.stops, found.lost.reason) == ([], "")
    left = question.without(part)
    assert left.nodes[0] == (cut,)
    assert sorted(sum(left.nodes, ())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("part", "nodes", "stops", "reason"),
    [
        ("n3", "[3]", ["x"], "x: its node n3 has failed"),
        ("n3.mlx5_0", "[3]", ["x"], "x: its node n3 is cut off"),
        ("n0", "[3]", ["a"], "a: its node n0 has failed"),
    ],
)
def test_traffic_stops_alone_if_an_end_of_it_is_lost(tmp_path, part, nodes, stops, reason):
    text = (
        f'{MACHINE}fails = "{part}"\n[[job]]\nname = "a"\nnodes = "0-1"\ncount = 1\n'
        '[[job]]\nname = "b"\nnodes = 1\nworkload = "bytes:1M"\ncount = 1\n'
    ).replace('"0-1"', '"0-1"\nworkload = "bytes:16M"') + INCAST.replace("[0]", nodes)
    found = answer_jobs(read(tmp_path, text))
    [failure] = BESIDE.write(found)["failures"]

    assert (failure["stops"], failure["reason"]) == (stops, reason)
    assert [each.slowdown < 10 for each in found.lost.outcomes] == ["a" not in stops, True]
    assert reason in jobs_text(found)


def test_jobs_of_one_node_go_on_where_nothing_joins_nodes(tmp_path):
    """And traffic of all nodes stops, as nobody is left to send to."""
    text = INCAST.replace("incast", "permutation").replace("to = [0]\n", "")
    text = f'topology = "dgx-a100x5,fabric=fat_tree,radix=6,nics=1"\nfails = "leaf"\n{SMALL}{text}'
    found = answer_jobs(read(tmp_path, text))
    [failure] = BESIDE.write(found)["failures"]

    assert (failure["part"], failure["stops"]) == ("leaf0", ["a", "b", "x"])
    assert "a: 2 nodes asked for, and at most 1 are joined; " in failure["reason"]
    assert failure["reason"].endswith("x: nobody is left to send")


def test_a_job_stops_with_the_storage_that_it_needs(tmp_path):
    text = TWO.replace('"2-3"', "1") + '[job.checkpoint]\nsize = "1 MB"\nevery = "1 s"\nto = [3]\n'
    found = answer_jobs(read(tmp_path, f'fails = "n3"\n{text}'))

    assert (found.lost.stops, found.lost.reason) == (["b"], "b: its node n3 has failed")


def test_progress_is_one_count_with_failures_and_placements(tmp_path):
    """And of placements, only those that may be the best are simulated after failures."""
    for head in (f'fails = "nic"\n{FAILS}', f'fails = "nic"\n{PLACED}'):
        seen = []
        found = answer_jobs(read(tmp_path, head), lambda *counts, to=seen: to.append(counts))
        done, totals = zip(*seen, strict=True)
        assert list(done) == sorted(done)
        assert len({*totals}) == 1
        assert done[-1] <= totals[0]
        assert found.complete


def test_failures_of_a_placement_end_where_one_makes_it_worse_than_the_best(tmp_path):
    question, lost = read(tmp_path, f'fails = ["nic", "leaf"]\n{PLACED}'), []
    found = answer_jobs(question)

    def place(nodes):
        placed = question.place(nodes)
        return replace(placed, without=lambda part: lost.append(part) or placed.without(part))

    again = answer_jobs(replace(question, place=place))
    parts = sum(each.kinds for each in found.failures)
    assert again.question.nodes == found.question.nodes
    assert len(lost) < parts * (again.tried - 1) <= parts * MOST_COMPARED


def test_what_decides_is_said_beside_what_holds_while_nothing_fails(tmp_path):
    found = answer_jobs(read(tmp_path, f'fails = "nic"\n{FAILS}'))
    text = jobs_text(found)
    slow = max(each.by_neighbours for each in found.outcomes)

    assert "Which job loses most while nothing fails?" in text
    assert f"{slow:.2f} times as long as alone." in text
    assert f"Which loses most if {found.lost.part} fails?" in text
    placed = answer_jobs(read(tmp_path, f'fails = "spine"\n{PLACED}'))
    healthy = BESIDE.write(placed)["given_healthy_slowdown"]
    assert healthy == placed.healthy > 1.5
    assert f"{healthy:.2f} times on the given nodes. A failure decides" in jobs_text(placed)


FAILS = (
    'topology = "dgx-h100x4,fabric=fat_tree,radix=4,oversubscription=2"\n'
    '[[job]]\nname = "a"\nnodes = [0, 2]\nworkload = "bytes:64M"\ncount = 1\n'
    '[[job]]\nname = "b"\nnodes = [1, 3]\nworkload = "bytes:16M"\ncount = 1\n'
)


def test_what_a_failure_costs_is_said_apart_from_what_neighbours_do(tmp_path):
    """By themselves, jobs take after a failure what `run` says of the machine without the part."""
    text = FAILS.partition('[[job]]\nname = "b"')[0]
    found = answer_jobs(read(tmp_path, f'fails = ["spine", "leaf"]\n{text}'))
    (job,), (spine, leaf) = found.outcomes, found.failures
    for failure in (spine, leaf):
        scenario = build_scenario(
            tmp_path / "x.toml",
            {"topology": found.question.setup.topology.name, "workload": "bytes:64M",
             "fails": failure.part, "nodes": "0,2", "strategies": ["nccl"]},
        )  # fmt: skip
        alone = next(c for c in rank(scenario).candidates if c.strategy.text == "nccl")
        assert failure.outcomes[0].times == (alone.seconds,)
        assert alone.seconds >= job.alone

    assert (spine.kinds, spine.parts) == (1, 2)
    assert job.after == max(each.outcomes[0].times for each in (spine, leaf))
    assert job.by_neighbours == 1.0 < job.by_failure == pytest.approx(job.slowdown)
    (row,) = BESIDE.write(found)["jobs"]
    assert row["slowdown"] == pytest.approx(row["by_neighbours"] * row["by_failure"])
    assert row["failed_s"] / row["alone_s"] == pytest.approx(row["slowdown"])
    assert f"if {found.lost.part} fails" in jobs_text(found)


def test_a_part_that_no_job_uses_costs_nothing(tmp_path):
    text = FAILS.replace("[0, 2]", "[0, 1]").partition('[[job]]\nname = "b"')[0]
    found = answer_jobs(read(tmp_path, f'fails = ["n3.mlx5_0", "core"]\n{text}'))

    (job,) = found.outcomes
    assert job.after == job.times
    assert found.failures[1].part == ""
    assert "there is none" in jobs_text(found)


def test_without_failures_nothing_is_said_of_them(tmp_path):
    document = BESIDE.write(answer_jobs(read(tmp_path, FAILS)))

    assert "failures" not in document
    assert all(
        {"failed_s", "by_neighbours", "by_failure"}.isdisjoint(each) for each in document["jobs"]
    )


@pytest.mark.slow
def test_the_worst_of_the_parts_that_differ_counts(tmp_path):
    """A part by its name costs no more than the worst of its class."""
    worst = answer_jobs(read(tmp_path, f'fails = "leaf"\n{FAILS}')).failures[0]
    named = [
        answer_jobs(read(tmp_path, f'fails = "leaf {i}"\n{FAILS}')).failures[0]
        for i in range(worst.parts)
    ]

    assert max(each.slowdown for each in named) == worst.slowdown
    assert worst.kinds < worst.parts == 8


def test_unknown_parts_are_refused_with_the_nearest(tmp_path):
    found = faults(tmp_path, f'fails = ["nix", "spine", "n9.mlx5_0", "nix 3"]\n{FAILS}')

    assert [each.partition(":")[0] for each in found] == ["fails[0]", "fails[2]", "fails[3]"]
    assert "did you mean 'nic'" in found[0]


PLACED = (
    "placement = true\n"
    'topology = "dgx1vx8,fabric=fat_tree,radix=4,nics=1,oversubscription=4"\n'
    '[[job]]\nname = "a"\nnodes = "0,4"\nworkload = "bytes:64M"\ncount = 1\n'
    '[[job]]\nname = "b"\nnodes = "1,5"\nworkload = "bytes:64M"\ncount = 1\n'
)


def test_jobs_are_placed_on_the_best_nodes_that_were_tried(tmp_path):
    """Beside the time alone on the given nodes; by themselves, jobs lose as much there."""
    found = answer_jobs(read(tmp_path, PLACED))
    given = answer_jobs(read(tmp_path, PLACED.partition("\n")[2]))
    chosen = PLACED.partition("\n")[2]
    for old, mine in zip(('"0,4"', '"1,5"'), found.question.nodes, strict=True):
        chosen = chosen.replace(old, str([*mine]))
    again = answer_jobs(read(tmp_path, chosen))

    assert all(len({node // 4 for node in mine}) == 1 for mine in found.question.nodes)
    assert found.given == given.slowest.slowdown > 1.5
    assert found.slowest.slowdown == pytest.approx(1.0, abs=1e-3)
    assert [each.times for each in found.outcomes] == [each.times for each in again.outcomes]
    assert [each.alone for each in found.outcomes] == [each.alone for each in given.outcomes]
    assert f"The best of {found.tried} placements" in jobs_text(found)
    assert BESIDE.write(found)["answer"].startswith("Run ")
    assert "; on the given nodes the slowest takes " in BESIDE.write(found)["answer"]


def test_a_placement_that_nothing_betters_stays(tmp_path):
    """Also where the nodes of a job are in an order of their own."""
    text = PLACED.replace('"0,4"', '"1,0"').replace('"1,5"', '"4,5"')
    found = answer_jobs(read(tmp_path, text))

    assert found.question.nodes == ((1, 0), (4, 5))
    assert (found.tried > 1, found.kept, found.given) == (True, True, found.slowest.slowdown)
    words = f"one of {found.tried - 1} other placements that were tried is faster by more than 1 %."
    assert f"as placed. N{words}" in jobs_text(found)
    assert BESIDE.write(found)["answer"].startswith(f"Keep the given nodes: n{words}")


def test_nodes_on_which_a_job_alone_is_faster_are_found(tmp_path):
    """Also where nobody is slower beside the others."""
    text = PLACED.partition('[[job]]\nname = "b"')[0].replace("0,4", "0,4,1,5")
    found = answer_jobs(read(tmp_path, text))

    assert found.given == 1.0
    assert found.slowest.slowdown < 0.99
    assert not found.kept


def test_an_interrupt_leaves_the_placements_so_far(tmp_path):
    def progress(done, total):
        assert total == 2 * MOST_PLACED
        if done == 6:
            raise KeyboardInterrupt

    found = answer_jobs(read(tmp_path, PLACED), progress)
    assert (found.complete, found.tried) == (False, 3)


def test_an_interrupt_leaves_the_failures_so_far(tmp_path):
    """Only who is told of the progress has use for some of them."""
    whole = read(tmp_path, f'fails = ["spine", "nic"]\n{FAILS}')

    def without(part):
        if not part.startswith("spine"):
            raise KeyboardInterrupt
        return whole.without(part)

    question = replace(whole, without=without)
    found = answer_jobs(question, lambda _done, _all: None)
    assert (found.complete, [each.fails for each in found.failures]) == (False, ["spine"])
    assert BESIDE.write(found)["complete"] is False
    with pytest.raises(KeyboardInterrupt):
        answer_jobs(question)


def test_copies_are_not_placed(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(f"placement = true\n{MIX}", "utf-8")
    document = read_scenario_file(str(path))
    for ask in (lambda: next(fit_jobs(*document, 1.1)), lambda: build_jobs(*document, copies=2)):
        with pytest.raises(ScenarioError, match="placement: copies take the first nodes"):
            ask()


def test_copies_keep_their_promise_after_a_failure(tmp_path):
    path = tmp_path / "mix.toml"
    text = FAILS.replace("[0, 2]", "1").replace("[1, 3]", "1")
    path.write_text(f'fails = "node"\n{text}', "utf-8")
    *_, found = fit_jobs(*read_scenario_file(str(path)), 1e3)

    assert found.fit.copies == 1
    assert found.fit.limit.startswith("with 2, the jobs stop if n0 fails: job")


def test_only_classes_of_parts_fail_on_other_machines():
    document = {"topology": "a", "fails": ["spine", "n0.mlx5_0"], "job": []}

    assert elsewhere(document, "b") == {"topology": "b", "fails": ["spine"], "job": []}
    assert elsewhere({"fails": "n3"}, "b") == {"topology": "b"}


BIG = (
    'topology = "dgx1vx2,fabric=switch"\n[[job]]\nname = "big"\nnodes = 1\ncount = 1\n'
    'workload = "resnet50"\nstep = {batch = 4096, time = "1 s"}\n'
)


def test_a_job_that_does_not_fit_the_memory_of_its_gpus_is_said(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(BIG, "utf-8")
    found = answer_jobs(load_jobs(str(path)))
    (row,) = BESIDE.write(found)["jobs"]
    *_, copies = fit_jobs(*read_scenario_file(str(path)), 1e3)

    assert row["fits"] is False
    assert row["needs_bytes"] > 32e9
    assert "big needs" in jobs_text(found).partition("How sure")[0]
    assert copies.fit.copies == 0
    assert "big needs" in copies.fit.limit


@pytest.mark.parametrize("copies", [257, 10**9])
def test_more_jobs_than_are_simulated_are_refused_before_any_is_read(tmp_path, copies):
    path = tmp_path / "mix.toml"
    path.write_text(BIG.replace("dgx1vx2", "dgx9"), "utf-8")
    with pytest.raises(ScenarioError) as caught:
        build_jobs(*read_scenario_file(str(path)), copies=copies)

    assert f"{path}: job: {copies:,} jobs, and at most 256 are simulated" in caught.value.problems


@pytest.mark.parametrize(
    ("key", "value"), [("to", "7.5"), ("to", "3"), ("to", "[]"), ("nodes", "0"), ("pattern", '"x"')]
)
def test_a_key_of_the_wrong_kind_is_one_fault(tmp_path, key, value):
    lines = [each for each in INCAST.splitlines() if not each.startswith(key)]
    found = faults(tmp_path, TWO + "\n".join([*lines, f"{key} = {value}"]))

    assert [each.partition(": ")[0] for each in found] == [f"traffic[0].{key}"]


def test_more_nodes_than_there_are_send_nothing(tmp_path):
    found = faults(tmp_path, TWO + INCAST + "nodes = 5\n")

    assert found == ["traffic[0].nodes: 5 asked for, and the machine has 4 nodes"]


def test_faults_of_the_machine_name_the_file_once(tmp_path):
    path = tmp_path / "jobs.toml"
    path.write_text("runtime = 3\n" + TWO.replace("dgx1vx4", "dgx9vx4"), "utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_jobs(str(path))

    assert [each.count("jobs.toml") for each in caught.value.problems] == [1, 1]


def test_a_job_on_another_runtime_is_named_with_its_key(tmp_path):
    text = MACHINE + '[[job]]\nname = "a"\nnodes = 1\nworkload = "bytes:1M"\n'
    text += text.replace(MACHINE, "").replace('"a"', '"b"') + 'strategy = "ring"\n'

    words = "runs on tensorflow, and a on nccl; one fabric has one runtime, which `runtime` sets"
    assert [f"job[1].strategy: {words} for all"] == faults(tmp_path, text)
    assert read(tmp_path, f'runtime = "nccl"\n{text}').jobs


ALIKE = 'topology = "dgx-h100x4"\nfails = ["nic"]\n' + "".join(
    f'[[job]]\nname = "{name}"\nnodes = "{nodes}"\nworkload = "bytes:256M"\ncount = 1\n'
    for name, nodes in {"a": "n[0-1]", "b": "n[2-3]"}.items()
)


def test_each_job_is_shown_with_the_part_that_is_worst_for_it(tmp_path):
    """Equal jobs lose as much, each by a NIC of its own, which is said to be its own."""
    document = BESIDE.write(answer_jobs(read(tmp_path, ALIKE)))
    [failure] = document["failures"]
    first, second = failure["worst"]

    assert ("n0.mlx5_0", "a") == (failure["part"], failure["whose"])
    assert "if n0.mlx5_0 (of a) fails" in document["answer"]
    assert ("a", "n0.mlx5_0", "b", "n2.mlx5_0") == (
        first["job"], first["part"], second["job"], second["part"],
    )  # fmt: skip
    assert first["slowdown"] == pytest.approx(second["slowdown"])
    assert first["slowdown"] > 1.01


def test_how_sure_it_is_has_a_figure_where_one_is_known(tmp_path):
    found = answer_jobs(read(tmp_path, ALIKE.replace('fails = ["nic"]\n', "")))
    low, high = found.question.setup.interval(256 << 20, 1.0)

    assert found.factor == pytest.approx(max(1 / low, high))
    assert f"within a factor of {found.factor:.2f} of predictions" in jobs_text(found)
    other = answer_jobs(read(tmp_path, f'runtime = "tensorflow"\n{ALIKE}'))
    assert other.factor is None
    assert "no published timings say" in jobs_text(other)
