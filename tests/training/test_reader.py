"""The `[replicas]` table of a scenario: what it means, and every fault with its key."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given, strategies as st

from simreduce.engine import IDEAL, Disturbance, Fault
from simreduce.engine.setup import Setup
from simreduce.errors import ScenarioError
from simreduce.files.formats.syntax import Faults
from simreduce.report.replicas import REPLICAS, Updates, replicas_text
from simreduce.topology import load_topology
from simreduce.training.distributions import (
    Constant,
    Empirical,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    Uniform,
)
from simreduce.training.replicas import ReplicasJob, SyncSettings, parse_replicas
from simreduce.training.replicas.network import Delays, LinkNetwork
from simreduce.training.replicas.processes import simulate_replicas
from simreduce.training.stragglers import compare_backups, repeat
from simreduce.workload.loader import load_workload

NODES = load_topology("dgx1vx2,nic=ib_edr")


def read_replicas(table, *more, **rest):
    found = Faults()
    question = parse_replicas(table, found, *more, **rest)
    found.raise_any(ScenarioError)
    return question


def read(text, *more, **rest):
    return read_replicas(tomllib.loads(text), *more, **rest)


def faults(text, *more, **rest):
    with pytest.raises(ScenarioError) as caught:
        read(text, *more, **rest)
    return list(caught.value.problems)


def test_the_least_that_is_needed():
    """Workers and what they compute; communication is free then."""
    asked = read('workers = 4\ncompute = "120 ms"')
    job = asked.job

    assert (4, 1, SyncSettings(4, 4), Constant(0.12)) == (
        job.workers,
        job.variables,
        job.settings,
        job.compute,
    )
    assert (100, 20, 10) == (asked.updates, asked.repetitions, asked.skip)
    assert simulate_replicas(job, 2).seconds == pytest.approx(0.24)


def test_every_key_arrives_where_it_belongs():
    asked = read(
        """
        workers = 8
        servers = 2
        backups = 1
        total = 9
        tokens = 3
        compute = {distribution = "normal", mean = "120 ms", sd = "10 ms"}
        slow = {3 = 2.0}
        dies = {5 = "10 s"}
        returns = {5 = "40 s"}
        size = "100 MB"
        bandwidth = "10 GB/s"
        latency = "1 ms"
        update = "2 ms"
        averages = "3 ms"
        turn = "4 ms"
        updates = 50
        repetitions = 7
        skip = 10
        seed = 6
        """
    )
    job = asked.job

    assert SyncSettings(7, 9, 3) == job.settings
    assert (Normal(0.12, 0.01), {3: 2.0}, {5: 10.0}, {5: 40.0}) == (
        job.compute,
        job.slow,
        job.dies,
        job.returns,
    )
    assert (0.002, 0.003, 0.004, 6) == (job.update, job.averages, job.turn, job.seed)
    assert (50, 7, 10) == (asked.updates, asked.repetitions, asked.skip)
    assert isinstance(job.network, Delays)
    assert (8, 2) == job.network.push.shape
    assert (
        job.network.push.min() == job.network.pull.max() == pytest.approx(0.021)
    )  # two variables share a port
    assert [0.0, 0.001] == job.network.messages.report.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"1 s"', Constant(1.0)),
        ('{distribution = "constant", seconds = "1 s"}', Constant(1.0)),
        ('{distribution = "uniform", low = "1 s", high = "2 s"}', Uniform(1.0, 2.0)),
        ('{distribution = "lognormal", mean = "1 s", sd = "2 s"}', Lognormal(1.0, 2.0)),
        ('{distribution = "exponential", mean = "1 s"}', Exponential(1.0)),
        ('{distribution = "exponential", mean = "1 s", least = "1 ms"}', Exponential(1.0, 0.001)),
        ('{distribution = "pareto", least = "1 s", shape = 1.5}', Pareto(1.0, 1.5)),
        ('{distribution = "trace", times = ["1 s", "90 ms"]}', Empirical((1.0, 0.09))),
    ],
)
def test_distributions(text, expected):
    assert expected == read(f"workers = 1\ncompute = {text}").job.compute


def test_workers_and_servers_of_a_topology():
    """GPUs in order; hosts of different machines first; variables in turn."""
    asked = read(
        'workers = 3\nservers = 2\ncompute = "1 ms"', Setup(NODES, IDEAL), load_workload("resnet50")
    )
    network = asked.job.network

    assert isinstance(network, LinkNetwork)
    assert NODES.devices[:3] == network.workers
    assert 2 == len({NODES.nodes[name].machine for name in network.servers})
    assert len(load_workload("resnet50").gradients) == len(network.nbytes) == asked.job.variables
    assert network.servers[0] == network.servers[2] != network.servers[1]
    alone = read(
        'workers = 3\nservers = 2\ncontention = false\ncompute = "1 ms"',
        Setup(NODES, IDEAL),
        load_workload("resnet50"),
    )
    assert (network.uncontended.push == alone.job.network.push).all()


def test_names_of_devices():
    first, last = NODES.devices[0], NODES.devices[-1]
    asked = read(
        f'workers = ["{last}"]\nservers = ["{first}"]\nsize = "1 MB"\ncompute = "1 ms"',
        Setup(NODES),
    )

    assert ((last,), (first,), (1_000_000,)) == (
        asked.job.network.workers,
        asked.job.network.servers,
        asked.job.network.nbytes,
    )


def test_upstream_s_own_tokens_if_faithful():
    assert 4 == read('workers = 4\ncompute = "1 s"', faithful=True).job.settings.initial_tokens
    assert 0 == read('workers = 4\ncompute = "1 s"').job.settings.initial_tokens
    assert 4 == read('workers = 4\ntokens = -1\ncompute = "1 s"').job.settings.initial_tokens


def test_every_fault_is_told_at_once():
    assert [
        "replicas.backup: unknown key (did you mean 'backups'?)",
        "replicas.slow.1: must be a number of at least 0, got '2'",
        "replicas.dies: must have the numbers of workers as keys, got 'one'",
        "replicas.update: 5 has no unit; write a time as text, for example '1.5 us' or '700 ns'",
        "replicas.repetitions: must be a whole number from 1 to 1000000, got 0",
        "replicas.skip: must be fewer than the 5 updates, got 5",
    ] == faults(
        """
        workers = 4
        backup = 1
        compute = "1 s"
        slow = {1 = "2"}
        dies = {one = "1 s"}
        update = 5
        updates = 5
        skip = 5
        repetitions = 0
        """
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('compute = "1 s"', "replicas.workers: missing"),
        ("workers = 2", "replicas.compute: missing"),
        ('workers = 0\ncompute = "1 s"', "replicas.workers: must be a whole number from 1"),
        ('workers = [1]\ncompute = "1 s"', "replicas.workers: must be a number, or names"),
        ('workers = ["gpu0"]\ncompute = "1 s"', "only a topology has devices with names"),
        (
            'workers = 2\naggregate = 2\nbackups = 1\ncompute = "1 s"',
            "replicas.aggregate: must be 1: 2 workers less 1 backups",
        ),
        (
            'workers = 2\nbackups = 2\ncompute = "1 s"',
            "replicas.backups: must be fewer than the 2 workers, got 2",
        ),
        (
            'workers = 2\naggregate = 3\ntokens = 0\ncompute = "1 s"',
            "too few tokens to finish the first step",
        ),
        (
            'workers = 2\ncontention = true\ncompute = "1 s"',
            "only a topology has links to contend for",
        ),
        ('workers = 2\ncontention = "no"\ncompute = "1 s"', "must be true or false"),
        (
            'workers = 2\nbandwidth = "0 GB/s"\ncompute = "1 s"',
            "replicas.bandwidth: must be above 0",
        ),
        (
            'workers = 2\ndies = {7 = "1 s"}\ncompute = "1 s"',
            "replicas.dies: the workers are 0 to 1, not 7",
        ),
        (
            'workers = 2\nreturns = {1 = "1 s"}\ncompute = "1 s"',
            "replicas.returns: worker 1 does not die",
        ),
        (
            'workers = 2\ndies = {1 = "2 s"}\nreturns = {1 = "1 s"}\ncompute = "1 s"',
            "replicas.returns: worker 1: after it dies at 2 s, not at 1 s",
        ),
        (
            'workers = 1\nsettings = "easyrec"\ncompute = "1 s"',
            "replicas.settings: EasyRec synchronises several workers, not 1",
        ),
        (
            'workers = 2\nbackups = 1\nsettings = "easyrec"\ncompute = "1 s"',
            "replicas.backups: replicas.settings says it",
        ),
        ('workers = 2\nsettings = "easyrek"\ncompute = "1 s"', "did you mean 'easyrec'?"),
        (
            'workers = 1000\nupdates = 1000000\nrepetitions = 1\ncompute = "1 s"',
            "replicas.updates: 1,000,000 are 1,000,000,000 steps of workers",
        ),
        (
            'workers = 2\ntokens = 1000000000\ncompute = "1 s"',
            "replicas.tokens: must be a whole number from -1 to 1000000",
        ),
        (
            'workers = 2\nupdates = 1000\nrepetitions = 100000\ncompute = "1 s"',
            "replicas.repetitions: 100,000 times 1,000 updates",
        ),
        (
            'workers = 10000\nservers = 10000\ncompute = "1 s"',
            "10,000 workers with 10,000 variables are more than 16,777,216 transfers",
        ),
        (
            'workers = 2\ncompute = {distribution = "gamma"}',
            "replicas.compute.distribution: unknown distribution 'gamma'; known are constant",
        ),
        ('workers = 2\ncompute = {distribution = "parto"}', "did you mean 'pareto'?"),
        (
            'workers = 2\ncompute = {distribution = "normal", mean = "1 s"}',
            "replicas.compute.sd: missing",
        ),
        (
            'workers = 2\ncompute = {distribution = "normal", mean = "1 s", sd = "1 s", mu = 1}',
            "replicas.compute.mu: unknown key",
        ),
        (
            'workers = 2\ncompute = {distribution = "uniform", low = "2 s", high = "1 s"}',
            "replicas.compute: high: no less",
        ),
        (
            'workers = 2\ncompute = {distribution = "trace", times = "1 s"}',
            "replicas.compute.times: must be a list",
        ),
    ],
)
def test_a_fault(text, fault):
    assert any(fault in problem for problem in faults(text))


def test_faults_of_the_table_are_told_beside_those_of_its_machine():
    """Of what depends on the machine nothing is said."""
    assert [
        "replicas.workers: must be a number, or names of devices, got [1]",
        "replicas.update: 5 has no unit; write a time as text, for example '1.5 us' or '700 ns'",
        "replicas.skip: must be fewer than the 5 updates, got 9",
    ] == faults(
        'workers = [1]\ncontention = true\ncompute = "1 s"\nupdate = 5\nupdates = 5\nskip = 9',
        faulty={"topology"},
    )
    assert ["replicas.slow: the workers are 0 to 1, not 2"] == faults(
        'workers = ["gpu7", "gpu8"]\ncontention = true\nsize = "1 MB"\nslow = {2 = 2.0}\ncompute = '
        '"1 s"',
        faulty={"topology"},
    )


def test_what_does_not_depend_on_what_is_faulty_is_told_with_it():
    """A machine, gradients or a disturbance that have faults keep no others from being told."""
    text = 'workers = 4\ncompute = "1 s"\ncontention = false\nlatency = "1 us"\nsize = "1 MB"'

    assert [
        "replicas.size: the scenario has a workload, which says how large variables are",
        "replicas.latency: the topology says it",
    ] == faults(text, faulty={"topology", "workload"})
    assert [
        "replicas.latency: the topology says it",
        "replicas.contention: jitter needs it",
    ] == faults(
        text,
        Setup(NODES, disturbance=Disturbance({"gpux": 2.0}, jitter=0.1)),
        faulty={"disturbance"},
    )
    assert [
        (
            "replicas.bandwidth: 5 has no unit; write a bandwidth as text, for example '25 GB/s' "
            "or "
            "'200 Gbit/s'"
        )
    ] == faults('workers = 4\ncompute = "1 s"\nbandwidth = 5', faulty={"workload"})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("workers = 4\nbackups = 4", "replicas.backups: must be fewer than the 4 workers, got 4"),
        ("workers = 1\nbackups = 8", "replicas.backups: must be fewer than the 1 worker, got 8"),
        (
            "workers = 4\ntotal = 1\ntokens = 2",
            "replicas.tokens: too few tokens to finish the first step: 2 given, 3 needed",
        ),
        (
            'workers = ["n0.gpu0", "n0.gpu00"]',
            f"replicas.workers[1]: {NODES.name} has no device 'n0.gpu00' (did you mean 'n0.gpu0'?)",
        ),
        ('workers = ["n0.gpu0", "n1.gpu0", "n0.gpu0"]', "replicas.workers[2]: 'n0.gpu0' again"),
        ('workers = 2\nservers = ["n0.cpu0", "n0.cpu0"]', "replicas.servers[1]: 'n0.cpu0' again"),
        (
            'workers = 2\nservers = ["n0.cpx0"]',
            f"replicas.servers[0]: {NODES.name} has no device 'n0.cpx0' (did you mean 'n0.cpu0'?)",
        ),
        (
            'workers = ["n0.pcie0"]',
            f"replicas.workers[0]: {NODES.name} has no device 'n0.pcie0' (did you mean 'n0.gpu0'?)",
        ),
    ],
)
def test_a_fault_has_the_key_that_was_written(text, fault):
    """Of settings, too, which have other names in Python."""
    assert [fault] == faults(f'{text}\ncompute = "1 s"', Setup(NODES))


def test_the_first_tenth_does_not_count_unless_the_table_says_so():
    """Workers begin together, which no later update has."""
    skipped = [
        read(f'workers = 1\nupdates = {n}\ncompute = "1 s"').skip for n in (1, 2, 5, 11, 100)
    ]

    assert [0, 1, 1, 2, 10] == skipped
    assert 0 == read('workers = 1\nskip = 0\ncompute = "1 s"').skip


def test_easyrec_s_settings():
    """Everybody's gradients, no tokens at first, whatever is faithful."""
    asked = read('workers = 4\nsettings = "easyrec"\ncompute = "1 s"', faithful=True)

    assert SyncSettings(4, 4, 0) == asked.job.settings


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("workers = 17", "the topology has 16 GPUs, not 17"),
        ("workers = 2\nservers = 9", "hosts, not 9"),
        ('workers = ["gpux"]', "has no device 'gpux'"),
        ('workers = 2\nlatency = "1 us"', "replicas.latency: the topology says it"),
        ('workers = 2\nsize = "1 MB"', "the scenario has a workload"),
        ("workers = 2\ncontention = false", "links that fail need it"),
    ],
)
def test_a_fault_with_a_topology(text, fault):
    link = NODES.links[0].name
    broken = Disturbance(faults=(Fault(1.0, link, 0.0),))

    assert any(
        fault in problem
        for problem in faults(
            f'{text}\ncompute = "1 s"', Setup(NODES, disturbance=broken), load_workload("bytes:1M")
        )
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_whatever_stands_in_the_file_is_read_or_refused(value):
    """Under every key."""
    known = (
        "workers servers backups aggregate total tokens compute slow dies size contention "
        "bandwidth latency update seed"
    )
    for key in known.split():
        with pytest.raises(ScenarioError):
            read_replicas({"compute": "1 s", key: value, "nothing": 1})
    with pytest.raises(ScenarioError):
        read_replicas(value)


def test_what_is_printed_and_what_programs_get():
    asked = read(
        'workers = 4\nrepetitions = 5\nupdates = 8\nskip = 2\ncompute = {distribution = "uniform", '
        'low = "1 s", high = "3 s"}'
    )
    spread = repeat(asked.job, asked.updates, asked.repetitions)
    choices = compare_backups(asked.job, asked.updates, asked.repetitions, skip=asked.skip)
    text, document = (
        replicas_text(Updates(asked, spread, choices)),
        REPLICAS.write(Updates(asked, spread, choices)),
    )

    assert "# 4 workers, 1 variable; an update takes 4 gradients" in text
    assert "5 repetitions of 8 updates simulated" in text
    assert "# 4 tokens after an update, 0 at first, no two workers share a link" in text
    assert "# times are without the first 2 updates, seed 0" in text
    assert spread.step(2).mean * 1e6 == document["step_time_us"]["mean"]
    assert [0, 1, 2] == [row["backups"] for row in document["backups"]]
    best = max(document["backups"], key=lambda row: row["gradients_per_second"]["mean"])
    assert best["backups"] == document["best_backups"]
    assert f"Keep {document['best_backups']} backup" in text
    assert document["backups"][0]["ideal_step_time_us"] == pytest.approx(1e6 * (1 + 2 * 4 / 5))
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_job_that_blocks_is_told():
    asked = read(
        'workers = 2\nrepetitions = 3\nupdates = 5\ncompute = "1 s"\ndies = {1 = "1500 ms"}'
    )
    spread = repeat(asked.job, asked.updates, asked.repetitions)
    choices = compare_backups(asked.job, asked.updates, asked.repetitions, [0])
    text, document = (
        replicas_text(Updates(asked, spread, choices)),
        REPLICAS.write(Updates(asked, spread, choices)),
    )

    assert "How long does an update take with 0?  never made" in text
    assert "In 3 of 3 repetitions training stops." in text
    assert "How many backups?  none will do." in text
    assert document["best_backups"] is document["step_time_us"]["mean"] is None


def test_flows_name_their_machine():
    asked = read(
        'workers = 2\nrepetitions = 1\nupdates = 1\nsize = "1 MB"\ncompute = "1 ms"', Setup(NODES)
    )
    text = replicas_text(Updates(asked, repeat(asked.job, 1, 1)))

    assert isinstance(asked.job, ReplicasJob)
    assert "# 2 workers, 1 variable; an update takes 2 gradients" in text
    assert "no two workers share a link" not in text


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        ('"120 ms"', "120 ms"),
        (
            '{distribution = "exponential", mean = "300 ms", least = "210 ms"}',
            "exponential, mean 300 ms, least 210 ms",
        ),
        ('{distribution = "exponential", mean = "300 ms"}', "exponential, mean 300 ms"),
        ('{distribution = "pareto", least = "1 s", shape = 2.5}', "pareto, least 1 s, shape 2.5"),
        (
            '{distribution = "trace", times = ["1 s", "2 s"]}',
            "one of 2 measured times, 1.5 s on average",
        ),
    ],
)
def test_the_head_says_how_long_workers_compute(compute, says):
    """And which of them are not as the others."""
    asked = read(
        f'workers = 4\ncompute = {compute}\nslow = {{2 = 1.5}}\ndies = {{1 = "1 s", 3 = "2 s"}}\n'
        f'returns = {{3 = "5 s"}}\nupdates = 3'
    )
    lines = replicas_text(Updates(asked, repeat(asked.job, 3, 1))).splitlines()

    assert f"# computing: {says}" in lines
    assert (
        "# worker 2 takes 1.5 times as long; worker 1 stops at 1 s; worker 3 stops at 2 s, back at "
        "5 s" in lines
    )
