"""A topology is a value: immutable, comparable, portable, and the same on every run."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys

import networkx as nx
import pytest
from hypothesis import given, strategies as st

from simreduce.topology import load_topology, natural, route


def test_nothing_can_be_changed():
    machine = load_topology("dgx1v")

    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.name = "x"
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.links[0].bandwidth = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.nodes["gpu0"].kind = "cpu"
    with pytest.raises(TypeError):
        machine.nodes["gpu9"] = machine.nodes["gpu0"]
    with pytest.raises(nx.NetworkXError):
        machine.graph.add_edge("gpu0", "gpu7")


def test_links_stand_at_their_id_and_come_in_both_directions():
    machine = load_topology("dgx1vx2")

    assert [link.id for link in machine.links] == list(range(len(machine.links)))
    for forth, back in zip(machine.links[::2], machine.links[1::2], strict=True):
        assert (forth.source, forth.target) == (back.target, back.source)
        same = {"id": 0, "source": "", "target": ""}
        assert dataclasses.replace(forth, **same) == dataclasses.replace(back, **same)
    assert machine.graph.number_of_edges() == len(machine.links)
    assert len({link.name for link in machine.links}) == len(machine.links)


def test_equal_topologies_are_equal_and_survive_pickling():
    machine = load_topology("dgx1v")
    copy = pickle.loads(pickle.dumps(machine))  # noqa: S301 - our own bytes

    assert copy == machine == load_topology("dgx1v")
    assert hash(copy) == hash(machine)
    assert copy.links == machine.links
    assert dict(copy.nodes) == dict(machine.nodes)
    assert route(copy, "gpu0", "gpu5") == route(machine, "gpu0", "gpu5")
    assert machine != load_topology("dgx1v", {"links.qpi.lanes": 1})


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_digest_does_not_depend_on_hash_seeds(seed):
    script = (
        "from simreduce.topology import load_topology, matrix_text, route\n"
        "for text in ('dgx1v', 'dgx1px2', 'ring:5', 'switch:3'):\n"
        "    t = load_topology(text)\n"
        "    print(t.digest, matrix_text(t), route(t, t.devices[0], t.devices[-1]))\n"
    )
    environment = dict(
        os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)
    )
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    assert load_topology("dgx1v").digest in run.stdout
    assert load_topology("ring:5").digest in run.stdout
    assert str(route(load_topology("dgx1px2"), "n0.gpu0", "n1.gpu7")) in run.stdout


def test_the_digest_tells_machines_apart():
    texts = [
        "dgx1v",
        "dgx1p",
        "dgx1vx1",
        "ring:3",
        "full:3",
        "full:3,latency=2us",
        "full:3,bandwidth=1GB/s",
    ]
    digests = {load_topology(text).digest for text in texts}

    # Three devices in a ring are every pair linked, but for the order of the links.
    assert len(digests) == len(texts)


@given(k=st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_scaling_is_exact_and_reversible(k):
    machine = load_topology("dgx1vx2")
    fast = machine.scale(bandwidth=k, latency=1 / k)

    for slow_link, fast_link in zip(machine.links, fast.links, strict=True):
        assert fast_link.bandwidth == slow_link.bandwidth * k
        assert fast_link.nominal == slow_link.nominal * k
        assert fast_link.latency * k == slow_link.latency
    assert fast.nodes["n0.gpu0"].memory_bandwidth == 900e9 * k
    assert fast.digest != machine.digest
    assert fast.scale(bandwidth=1 / k, latency=k).digest == machine.digest
    slow_route, fast_route = (route(each, "n0.gpu0", "n1.gpu7") for each in (machine, fast))
    assert fast_route.path == slow_route.path
    assert fast_route.latency * k == slow_route.latency


@pytest.mark.parametrize(
    ("bandwidth", "latency"), [(0, 1), (-1, 1), (float("nan"), 1), (1, -1), (1, float("inf"))]
)
def test_senseless_scaling(bandwidth, latency):
    with pytest.raises(ValueError, match="cannot scale"):
        load_topology("ring:2").scale(bandwidth=bandwidth, latency=latency)


def test_natural_order():
    names = ["gpu10", "gpu2", "a", "gpu01", "gpu1", "n10.gpu0", "n2.gpu0", "7"]

    assert sorted(names, key=natural) == [
        "a",
        "gpu01",
        "gpu1",
        "gpu2",
        "gpu10",
        "n2.gpu0",
        "n10.gpu0",
        "7",
    ]


def test_a_machine_with_other_figures_is_another_machine():
    """Whoever keeps what was worked out for one machine does not take it for the other."""
    machine = load_topology("dgx1v")
    wider = [dataclasses.replace(each, lanes=each.lanes + 1) for each in machine.links]
    quicker = {
        name: dataclasses.replace(node, memory_bandwidth=2.0 * node.memory_bandwidth)
        for name, node in machine.nodes.items()
    }

    assert machine == machine.with_figures()
    assert machine != machine.with_figures(links=wider)
    assert machine != machine.with_figures(nodes=quicker)
    assert machine.with_figures(links=wider).router is machine.router
