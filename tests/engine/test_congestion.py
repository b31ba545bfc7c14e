"""Flows that are held slow others on their way: closed forms, an oracle, and the limits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import assume, given, settings, strategies as st

import simreduce as sr
from simreduce.engine import IDEAL, NOMINAL, Fabric
from simreduce.engine.background import TrafficFlows
from simreduce.engine.kernel import store
from simreduce.engine.setup import Setup
from simreduce.errors import TopologyError
from simreduce.plan import Contract, PlanBuilder
from simreduce.testing.strategies import (
    ANY,
    ROUND,
    FigureRanges,
    calibrations,
    plans,
    readies,
    runtimes,
)
from simreduce.topology import Topology, fold
from simreduce.topology.elements import Cable, Node
from simreduce.topology.graph import build
from simreduce.topology.routing.switching import CHOICES, Switching
from tests.engine.oracle import Change, Submission
from tests.engine.test_against_oracle import check, engine_times
from tests.engine.test_recording import _check_flows, _check_resources
from tests.thorough import examples

GBIT = 1e9 / 8
ISOLATED, TREE, LOSSY = (
    Switching("first", congestion=each) for each in ("isolated", "tree", "lossy")
)


def network(hosts: dict[str, str], trunks: dict[tuple[str, str], float], **of: object) -> Topology:
    """Hosts with 40 Gbit/s to their switch, and other cables in Gbit/s."""
    ends = dict.fromkeys([*hosts.values(), *(end for pair in trunks for end in pair)])
    nodes = [Node(name, "switch", transit=True) for name in ends if name not in hosts]
    nodes += [Node(name, "gpu") for name in hosts]
    rates = dict.fromkeys(hosts.items(), 40.0) | trunks
    cables = [
        Cable(a, b, "wire", 1, rate * GBIT, rate * GBIT, 0.0, False)
        for (a, b), rate in rates.items()
    ]
    return build("net", "", "a test", nodes, cables, switching=Switching("first", **of))


def rates(topology: Topology, *pairs: tuple[str, str], short: float = 1e6) -> list[float]:
    """Gbit/s of the first pair, and of the others, which move much more."""
    env = simpy.Environment()
    flows, took = TrafficFlows(Fabric(env, topology, NOMINAL, IDEAL)), {}
    for number, pair in enumerate(pairs):
        nbytes = short * (1 if number == 0 else 1000)
        flows.send(*pair, nbytes).callbacks.append(
            lambda _, n=number, size=nbytes: took.__setitem__(n, size / env.now / GBIT)
        )
    env.run()
    return [took[number] for number in range(len(pairs))]


HOSTS = {"vs": "t1", "h11": "t1", "h12": "t1", "vr": "t3", "h21": "t3", "h22": "t3", "r": "t4"}
TRUNKS = {("t1", "l"): 40.0, ("t3", "l"): 40.0, ("l", "t4"): 400.0}
INCAST = [("h11", "r"), ("h12", "r"), ("h21", "r"), ("h22", "r")]


@pytest.mark.parametrize(
    ("of", "victim"),
    [({}, 20.0), ({"congestion": "tree"}, 10.0),
     ({"congestion": "tree", "congested": 0.5}, 15.0),
     ({"congestion": "tree", "congested": 0.0}, 20.0),
     ({"congestion": "lossy"}, 40.0 / 3)],
)  # fmt: skip
def test_a_victim_of_pfc(of, victim):
    """Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 2.2:
    two of four senders to one host share an up-link of 40 Gbit/s with a victim that goes elsewhere.
    20 Gbit/s were expected of it, and 10 measured under PFC, as much as each of the senders has.
    """
    found = rates(network(HOSTS, TRUNKS, **of), ("vs", "vr"), *INCAST)
    assert found == pytest.approx([victim, 10.0, 10.0, 10.0, 10.0], rel=0.01)


def test_a_tree_reaches_links_that_the_held_flow_never_passed():
    """The victim of a victim: `b` is held by a link that `a` stops, and stops `c` on another."""
    hosts = {"a1": "s1", "a2": "s2", "b": "s0", "c": "s0", "r": "s3", "x": "s2", "y": "s1"}
    trunks = {("s0", "s1"): 40.0, ("s1", "s2"): 40.0, ("s2", "s3"): 40.0}
    tree = network(hosts, trunks, congestion="tree")
    incast = [("a1", "r"), ("a2", "r")]  # each has half of what it offers
    assert rates(network(hosts, trunks), ("c", "y"), ("b", "x"), *incast)[0] == pytest.approx(20.0)
    assert rates(tree, ("b", "x"), *incast)[0] == pytest.approx(20.0)
    assert rates(tree, ("c", "y"), ("b", "x"), *incast)[0] == pytest.approx(20.0)
    more = [*incast, ("x", "r")]  # each has a third
    assert rates(tree, ("c", "y"), ("b", "x"), *more)[0] == pytest.approx(40.0 / 3)


def test_hosts_on_one_switch_feel_nothing():
    """NICs take turns among connections, and a switch has a queue for each way out."""
    hosts = dict.fromkeys(("a", "b", "c", "r", "v"), "s")
    tree = network(hosts, {("s", "other"): 40.0}, congestion="tree")
    assert rates(tree, ("a", "v"), ("b", "r"), ("c", "r"))[0] == pytest.approx(40.0)
    assert rates(tree, ("a", "v"), ("a", "r"), ("c", "r"))[0] == pytest.approx(20.0)


def test_who_waits_for_one_end_shares_it():
    """Of a host's two connections, only the one that goes elsewhere loses to another sender."""
    hosts = {"a": "s", "b": "s", "r": "t", "q": "t"}
    tree = network(hosts, {("s", "t"): 400.0}, congestion="tree")
    held, elsewhere, other = ("a", "r"), ("a", "q"), ("b", "r")
    assert rates(tree, held, elsewhere, other)[0] == pytest.approx(20.0)
    assert rates(tree, elsewhere, held, other)[0] == pytest.approx(10.0)


def test_what_a_sender_offers_counts_what_it_sends_on_its_own_switch():
    """At one instant `a` begins to send to a neighbour and into an incast: it offers 20 to that,
    gets 40/3, and so leaves `v` two thirds of the 40 that it offers.
    """
    hosts = {"a": "s", "c": "s", "v": "s", "b": "t", "d": "t", "r": "u", "q": "w"}
    trunks = {("s", "l"): 60.0, ("t", "l"): 400.0, ("l", "u"): 400.0, ("l", "w"): 400.0}
    pairs = ("v", "q"), ("a", "c"), ("a", "r"), ("b", "r"), ("d", "r")
    for order in itertools.permutations(pairs[1:]):
        found = rates(network(hosts, trunks, congestion="tree"), pairs[0], *order)
        assert found[0] == pytest.approx(80.0 / 3)


@pytest.mark.parametrize("turn", range(5))
def test_each_of_two_blocked_ends_slows_who_waits_for_the_other(turn):
    """Of `a`, `b` and `v` go on 13.3 of 40 Gbit/s, by their ends. `v` can send no more than 20, and
    on the link that `b` stops it has as much of that as `b` of its own 40, whoever came first.
    """
    hosts = {"a": "s", "b": "s", "v": "s"} | dict.fromkeys(("c", "d", "e", "q", "r"), "t")
    tree = network(hosts, {("s", "t"): 400.0, ("v", "s"): 20.0}, congestion="tree")
    others = [("a", "r"), ("c", "r"), ("b", "q"), ("d", "q"), ("e", "q")]
    others = others[turn:] + others[:turn]
    assert rates(tree, ("v", "r"), *others)[0] == pytest.approx(20.0 / 3)


@pytest.mark.parametrize("kind", ["tree", "lossy"])
def test_an_end_that_hardly_holds_anybody_hardly_slows_who_offers_as_much(kind):
    """From 53.3 Gbit/s on, the up-link that they share with the victim limits the two senders."""
    found = []
    for wide in (40.0, 48.0, 53.2, 53.4):
        machine = network(HOSTS, {**TRUNKS, ("r", "t4"): wide}, congestion=kind)
        found.append(rates(machine, ("vs", "vr"), *INCAST)[0])
    assert found[2:] == pytest.approx([40.0 / 3, 40.0 / 3], rel=3e-3)
    assert found[:2] == pytest.approx([10.0, 12.0] if kind == "tree" else [40.0 / 3] * 2)


def test_what_a_thin_link_holds_back_takes_no_room_further_on():
    """Of `f` and `g` no more than 10 Gbit/s come to the wide link; in a tree they fill it."""
    hosts = {"f": "s", "g": "s", "h": "t", "r": "u", "w": "u"}
    trunks = {("s", "t"): 10.0, ("t", "u"): 40.0, ("r", "u"): 1.0}
    flows = [("h", "w"), ("f", "r"), ("g", "r")]
    for kind, left in (("isolated", 39.0), ("lossy", 30.0), ("tree", 0.5)):
        assert rates(network(hosts, trunks, congestion=kind), *flows)[0] == pytest.approx(left)


@st.composite
def scenes(draw: st.DrawFn, figures: FigureRanges):
    """Many copies to few ends, over a tree of switches with thin and thick cables."""
    leaves = draw(st.integers(2, 4))
    gpus = [f"gpu{i}" for i in range(draw(st.integers(3, 8)))]
    pairs = [(gpu, f"leaf{draw(st.integers(0, leaves - 1))}") for gpu in gpus]
    pairs += [(f"leaf{i}", f"spine{i % 2}") for i in range(leaves)] + [("spine0", "spine1")]
    pairs += [(f"leaf{i}", f"spine{1 - i % 2}") for i in range(draw(st.integers(0, leaves)))]
    cables = []
    for one, other in pairs:
        rate = draw(figures.bandwidth) * (4 if "leaf" in one else 1)
        cables.append(Cable(one, other, "wire", 1, rate, rate, draw(figures.delay), False))
    names = dict.fromkeys(end for pair in pairs for end in pair if not end.startswith("gpu"))
    nodes = [Node(name, "switch", transit=True) for name in names]
    memory = st.one_of(st.just(math.inf), figures.bandwidth)
    nodes += [Node(name, "gpu", memory_bandwidth=draw(memory)) for name in gpus]
    switching = Switching(
        draw(st.sampled_from(CHOICES)),
        queue_pairs=draw(st.integers(1, 3)),
        congestion=draw(st.sampled_from(["tree", "lossy"])),
        congested=draw(st.sampled_from([1.0, 0.5, 0.25])),
    )
    topology = build("random", "", "a test", nodes, cables, switching=switching)
    submissions = []
    for _ in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(gpus))
        target = draw(st.sampled_from([gpu for gpu in gpus if gpu != source][:2]))
        b = PlanBuilder((source, target))
        b.copy(b.input(0, 0, draw(st.integers(1, 64)) * draw(figures.unit)), 1)
        plan = b.finish(Contract.of("copy", []))
        submissions.append(Submission(plan, [0.0], at=draw(figures.delay)))
    return topology, sorted(submissions, key=lambda each: each.at)


@st.composite
def busy_scenes(draw: st.DrawFn, figures: FigureRanges):
    """The same beside plans of all kinds of ops, on any runtime, while links change."""
    topology, submissions = draw(scenes(figures))
    plan = draw(plans(topology.devices, figures, most_ops=12))
    submissions.append(Submission(plan, draw(readies(plan, figures)), at=draw(figures.delay)))
    names = [link.name for link in topology.links]
    changes = []
    for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        rate = draw(st.one_of(st.just(0.0), figures.bandwidth))
        changes.append(Change(draw(figures.delay), name, rate))
        changes.append(Change(changes[-1].at + 2.0**-13, name, draw(figures.bandwidth)))
    submissions.sort(key=lambda each: each.at)
    return topology, draw(runtimes), draw(calibrations(figures)), submissions, changes


@given(busy_scenes(ANY))
@settings(max_examples=examples(100))
def test_the_oracle_says_the_same_of_plans_while_links_change(scene):
    assume(check(*scene))


def replace_time(submission: Submission) -> Submission:
    """The same at time 0."""
    return submission._replace(at=0.0)


@given(scenes(ANY))
@settings(max_examples=examples(150))
def test_the_oracle_says_the_same(scene):
    topology, submissions = scene
    assume(check(topology, IDEAL, NOMINAL, submissions))


@given(scenes(ROUND))
@settings(max_examples=examples(150))
def test_the_oracle_says_the_same_of_ties(scene):
    topology, submissions = scene
    assume(check(topology, IDEAL, NOMINAL, submissions))


@given(scenes(ROUND), st.data())
@settings(max_examples=examples(150))
def test_rates_do_not_depend_on_the_order_of_flows(scene, data):
    topology, submissions = scene
    together = [replace_time(each) for each in submissions]
    order = data.draw(st.permutations(range(len(together))))
    plain = engine_times(topology, IDEAL, NOMINAL, together, ())
    other = engine_times(topology, IDEAL, NOMINAL, [together[i] for i in order], ())
    for place, i in enumerate(order):
        assert other[place].finish == pytest.approx(plain[i].finish, rel=1e-9)


@given(busy_scenes(ANY), st.integers(0, 3))
@settings(max_examples=examples(50))
def test_compiled_and_interpreted_have_the_same_bits(scene, later):
    """Also if the first submissions were interpreted."""
    plain = engine_times(*scene)
    calls = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "compiling_pays", lambda *_, **__: next(calls) >= later)
        assert engine_times(*scene) == plain


@pytest.mark.parametrize("congestion", [TREE, LOSSY])
@pytest.mark.parametrize("text", ["fat_tree:16,radix=4", "dragonfly:16", "switch:8"])
def test_nobody_is_slowed_where_nobody_is_held(text, congestion):
    """A ring of equal sends has all that its sources offer, and takes as long as ever."""
    machine = sr.load_topology(text)
    alike = replace(congestion, choice=machine.router.switching.choice)
    plan = sr.compile("ring", sr.load_workload("bytes:64MiB"), sr.layout(machine))
    base = sr.simulate(plan, machine, runtime="ideal").seconds
    found = sr.simulate(plan, machine.vary(switching=alike), runtime="ideal").seconds
    assert found == pytest.approx(base, rel=1e-9)


@pytest.mark.parametrize("kind", ["tree", "lossy"])
def test_an_incast_slows_others_more_the_more_of_the_time_it_holds(kind):
    took = []
    for congested in (0.0, 0.25, 0.5, 1.0):
        found = network(HOSTS, TRUNKS, congestion=kind, congested=congested)
        took.append(1.0 / rates(found, ("vs", "vr"), *INCAST)[0])
    assert np.all(np.diff(took) > 0)


def test_equal_machines_are_not_folded_where_one_may_slow_another():
    text = "dgx1vx2,fabric=switch,nic=ib_edr,congestion=tree"
    with pytest.raises(TopologyError, match="folded only if congestion is isolated"):
        fold(sr.load_topology(text))


@pytest.mark.parametrize(("kind", "rate"), [("isolated", 20.0), ("tree", 10.0), ("lossy", 40 / 3)])
def test_a_recording_has_the_rates_that_flows_have(kind, rate):
    """All bytes pass, at these rates, and no link carries more than it can."""
    machine = network(HOSTS, TRUNKS, congestion=kind)
    b = PlanBuilder(tuple(HOSTS))
    for source, target in (("vs", "vr"), *INCAST):
        b.copy(b.input(list(HOSTS).index(source), 0, 1000), list(HOSTS).index(target))
    recording = Setup(machine, "ideal").record(b.finish(Contract.of("copies", [])))
    _check_resources(recording)
    _check_flows(recording)
    first = recording.rates.op == recording.rates.op.min()
    assert recording.rates.rate[first][0] / GBIT == pytest.approx(rate)
