"""Equal paths through a network: the first, one by hash, or all."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from fractions import Fraction
from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.errors import TopologyError
from simreduce.plan import Contract, PlanBuilder
from simreduce.study.tune.sizes import peer_to_peer
from simreduce.topology import Cable, Node, Topology, build, fold, load_topology, route
from simreduce.topology.machine_files import to_toml
from simreduce.topology.routing.switching import Switching
from tests.thorough import examples

SPLIT = Switching("split")


def middle(path: tuple[str, ...]) -> str:
    return path[len(path) // 2]


def test_the_hash_spreads_pairs_evenly_and_a_seed_deals_again():
    tree = load_topology("fat_tree:64,radix=8,equal_cost=hashed")
    pairs = [
        (a, b)
        for a, b in itertools.permutations(tree.devices, 2)
        if len(route(tree, a, b).links) == 4
    ]
    spines = Counter(middle(route(tree, *pair).path) for pair in pairs)

    assert len(pairs) == 64 * 56
    assert len(spines) == 8
    # 3584 throws at 8 spines: 448 each, give or take four standard deviations of 19.8.
    assert all(abs(count - 448) < 80 for count in spines.values())
    again = load_topology("fat_tree:64,radix=8,equal_cost=hashed,seed=1")
    moved = sum(route(tree, *pair).path != route(again, *pair).path for pair in pairs)
    assert 0.8 < moved / len(pairs) < 0.95  # 7/8
    assert tree.digest != again.digest
    assert route(tree, "gpu0", "gpu63") == route(load_topology(tree.name), "gpu0", "gpu63")


def test_queue_pairs_draw_a_path_each():
    text = "fat_tree:64,radix=8,equal_cost=hashed"
    one, four, many = (
        load_topology(f"{text},queue_pairs={pairs}" if pairs > 1 else text) for pairs in (1, 4, 64)
    )
    found = route(four, "gpu0", "gpu63")
    assert route(one, "gpu0", "gpu63").path == found.path  # of the first queue pair
    ups = [s for i, s in zip(found.links, found.shares, strict=True)
           if four.links[i].source == "leaf0"]  # fmt: skip
    assert sum(ups) == 1.0
    assert {share % 0.25 for share in ups} == {0.0}
    assert found.links[0] == route(one, "gpu0", "gpu63").links[0]

    def busiest(tree: Topology) -> float:
        """The load of the link that a permutation loads most."""
        load: Counter[int] = Counter()
        for i in range(64):
            way = route(tree, f"gpu{i}", f"gpu{(i + 17) % 64}")
            for link, share in zip(way.links, way.shares, strict=True):
                load[link] += share
        return max(load.values())

    assert busiest(one) > busiest(four) > busiest(many) >= 1.0
    assert len({tree.digest for tree in (one, four, many)}) == 3
    assert four.router.choice == "hashed, seed 0, 4 queue pairs"


def test_a_split_transfer_takes_every_spine():
    tree = load_topology("fat_tree:16,radix=4,bandwidth=10 GB/s,latency=2 us,equal_cost=split")
    found = route(tree, "gpu0", "gpu15")

    assert len(found.links) == 2 + 2 * 4
    assert Counter(found.shares) == {1.0: 2, 0.25: 8}
    assert found.bandwidth == 10e9
    assert found.latency == pytest.approx(4e-6)
    assert found.path == ("gpu0", "leaf0", "spine0", "leaf3", "gpu15")
    near = route(tree, "gpu0", "gpu1")
    assert (near.path, near.shares) == (("gpu0", "leaf0", "gpu1"), (1.0, 1.0))


def copies(topology: Topology, pairs: list[tuple[str, str]], nbytes: int) -> float:
    """Seconds for all of these copies at once."""
    builder, elements = PlanBuilder(topology.devices), nbytes // 4
    place = {name: i for i, name in enumerate(topology.devices)}
    for number, (a, b) in enumerate(pairs):
        value = builder.input(place[a], number * elements, (number + 1) * elements)
        builder.output(builder.copy(value, place[b]))
    plan = builder.finish(Contract.broadcast([0], [(0, 1, 0)], 0))
    return sr.simulate(plan, topology, runtime="ideal").seconds


@settings(max_examples=examples(30), deadline=None)
@given(st.permutations(range(16)))
def test_split_makes_a_full_tree_non_blocking(order):
    """Whoever sends to whom, one each: all at full rate. By hash some share an up-link, and so do
    some by the tree's rule.
    """
    name = "fat_tree:16,radix=4,bandwidth=10 GB/s,latency=0"
    pairs = [(f"gpu{a}", f"gpu{b}") for a, b in enumerate(order) if a != b]
    if pairs:
        assert copies(load_topology(f"{name},equal_cost=split"), pairs, 1 << 20) == pytest.approx(
            (1 << 20) / 10e9
        )


def test_two_flows_on_one_up_link_take_twice_as_long():
    """The slow-down by static hashing is the most flows on one up-link, counted by hand."""
    name = "fat_tree:16,radix=4,bandwidth=10 GB/s,latency=0,equal_cost=hashed"
    slow = []
    for seed in range(6):
        tree = load_topology(f"{name},seed={seed}")
        pairs = [(f"gpu{i}", f"gpu{(i + 4) % 16}") for i in range(16)]
        load = Counter(link for pair in pairs for link in route(tree, *pair).links)
        slow.append(max(load.values()))
        assert copies(tree, pairs, 1 << 20) == pytest.approx(slow[-1] * (1 << 20) / 10e9)
    assert max(slow) > 1


NAMES = {
    **{f"gpu{i}": "gpu" for i in range(3)},
    **{f"s{i}": "switch" for i in range(5)},
    "nic0": "nic",
}


@st.composite
def networks(draw):
    """Random networks with few distinct figures, so that equal paths are common."""
    pairs = list(itertools.combinations(NAMES, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, min_size=6, max_size=24))
    figures = st.tuples(st.sampled_from([1e9, 2e9]), st.sampled_from([1e-6, 2e-6]))
    nodes = [Node(name, kind, machine="", transit=kind != "gpu") for name, kind in NAMES.items()]
    cables = [Cable(a, b, "wire", 1, w, w, t, True) for a, b in chosen for w, t in [draw(figures)]]
    return nodes, cables


def equal_paths(topology: Topology, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All paths with the fewest hops that leave the network where `path` does, of those the widest,
    and the quickest. Ends with one way each into the network leave the choice to its switches.
    """
    inner = [name for name in NAMES if name.startswith("s")]
    parts: list[list[tuple[str, ...]]] = []
    at = 0
    while at + 1 < len(path):
        stop = next(
            i for i in range(at + 1, len(path)) if path[i] not in inner or i == len(path) - 1
        )
        graph = nx.DiGraph(topology.graph.subgraph([*inner, path[at], path[stop]]))
        if stop == at + 1:
            found = [[path[at], path[stop]]]
        else:
            found = list(nx.all_shortest_paths(graph, path[at], path[stop]))

        exits, entries = graph.out_degree(path[at]), graph.in_degree(path[stop])
        apart = exits == entries == 1 and stop > at + 1

        def merit(one, apart=apart):
            links = [topology.router.link(*hop) for hop in itertools.pairwise(one)]
            links = links[1:-1] if apart else links
            width = min((k.bandwidth for k in links), default=0.0)
            return -width, sum(round(k.latency * 1e6) for k in links)

        best = min(map(merit, found))
        parts.append([tuple(one[1:]) for one in found if merit(one) == best])
        at = stop
    return [(path[0], *itertools.chain(*choice)) for choice in itertools.product(*parts)]


@settings(max_examples=examples(200), deadline=None)
@given(networks(), st.integers(0, 3))
def test_equal_paths_are_those_that_a_search_of_all_finds(network, seed):
    plain = build("t", "t", "t", *network, switching=Switching("first"))
    hashed = build("t", "t", "t", *network, switching=Switching("hashed", seed))
    split = build("t", "t", "t", *network, switching=SPLIT)
    for a, b in itertools.permutations(("gpu0", "gpu1", "gpu2", "nic0", "s0"), 2):
        try:
            path = route(plain, a, b).path
        except TopologyError:
            continue
        ways = equal_paths(plain, path)
        assert route(hashed, a, b).path in ways
        found = route(split, a, b)
        assert found.path in ways
        expected = Counter(hop for way in ways for hop in itertools.pairwise(way))
        ends = [(split.links[i].source, split.links[i].target) for i in found.links]
        assert dict(zip(ends, found.shares, strict=True)) == pytest.approx(
            {hop: count / len(ways) for hop, count in expected.items()}
        )
        narrowest = min(
            split.links[i].bandwidth / s for i, s in zip(found.links, found.shares, strict=True)
        )
        assert found.bandwidth == narrowest


@pytest.mark.parametrize("factors", [{}, {"spine1": 0.5, "leaf0>spine0": 0.9}, {"spine0": 0}])
@pytest.mark.parametrize("choice", ["first", "hashed", "hashed,queue_pairs=3", "split"])
@pytest.mark.parametrize("fabric", ["fat_tree,radix=4", "rail_optimised,unit=2", "dragonfly"])
def test_many_routes_at_once_are_those_one_by_one(fabric, choice, factors):
    machine = load_topology(f"dgx-a100x3,nic=ib_hdr,fabric={fabric},equal_cost={choice}")
    if fabric == "dragonfly" and factors:
        factors = {"router4<>router9": factors.get("spine0", 0.5)}
    machine = machine.scale_links(factors) if factors else machine
    ends = np.array([machine.router.index[name] for name in machine.devices])
    source, target = (each.reshape(-1) for each in np.meshgrid(ends[:9], ends[5:]))
    found = machine.router.routes(source, target)

    names = list(machine.nodes)
    for i, (a, b) in enumerate(zip(source, target, strict=True)):
        row = slice(found.start[i], found.start[i + 1])
        one = route(machine, names[a], names[b])
        shares = [1.0] * len(one.links) if found.shares is None else found.shares[row]
        assert (tuple(found.links[row]), tuple(shares)) == (one.links, one.shares)
        assert found.holds_lane[i] == one.holds_lane


def test_a_transfer_keeps_its_nics():
    """What is hashed is the way between the NICs: each GPU's own is by the rule for NICs."""
    machine = load_topology("dgx-a100x4,nic=ib_hdr,fabric=fat_tree,radix=8,equal_cost=hashed")

    for i in range(8):
        path = route(machine, f"n0.gpu{i}", f"n3.gpu{i}").path
        assert [name for name in path if "mlx5" in name] == [f"n0.mlx5_{i}", f"n3.mlx5_{i}"]
        assert sum(name.startswith("spine") for name in path) == 1


BOARD = """
[nodes.gpu]
names = ["gpu[0-3]"]
kind = "gpu"
[nodes.chip]
names = ["chip[0-5]"]
kind = "nvswitch"
[links.nvlink3]
lanes = 2
pairs = [["gpu0", "chip[0-5]"], ["gpu1", "chip[0-5]"], ["gpu2", "chip[0-5]"], ["gpu3", "chip[0-5]"]]
"""


def test_nvswitches_share_what_is_split(tmp_path):
    """Six chips with two links each: over one of them a sixth of the rate."""
    path = tmp_path / "board.toml"
    path.write_text(BOARD + '[routing]\nequal_cost = "first"\n')
    one = load_topology(str(path))
    path.write_text(BOARD)
    all_ = load_topology(str(path))

    assert route(one, "gpu0", "gpu1").bandwidth == 45e9
    assert route(all_, "gpu0", "gpu1").bandwidth == pytest.approx(270e9)
    assert peer_to_peer(all_).enabled.one_way[0][1] == pytest.approx(270e9, rel=2e-3)
    assert load_topology(str(path), {"routing.equal_cost": "first"}).digest == one.digest
    assert load_topology(
        str(path), {"routing.equal_cost": "hashed", "routing.seed": 4}
    ).router.switching == (Switching("hashed", 4))


FABRICS = (
    "dgx-a100x6,nic=ib_hdr,fabric=fat_tree,radix=4",
    "dgx-a100x4,nic=ib_hdr,fabric=fat_tree,levels=3,radix=8",
    "dgx-a100x8,nic=ib_hdr,fabric=rail_optimised,unit=2",
    "dgx-a100x4,nic=ib_hdr,fabric=rail_only",
    "p3dnx12,nic=efa_100,fabric=dragonfly",
    "p3dnx16,nic=efa_100,fabric=torus,dims=4x4",
    "fat_tree:24,levels=3",
    "dragonfly:36",
)


@pytest.mark.parametrize("name", FABRICS)
def test_on_every_fabric_bytes_arrive_that_were_sent(name):
    """What flows into a switch flows out of it, all at the target; a hashed transfer takes links of
    the split one.
    """
    split, hashed = (
        load_topology(f"{name},equal_cost=split"),
        load_topology(f"{name},equal_cost=hashed,seed=2"),
    )
    several = 0
    for a, b in itertools.permutations(split.devices[::5], 2):
        found = route(split, a, b)
        flow: Counter[str] = Counter()
        for i, share in zip(found.links, found.shares, strict=True):
            link = split.links[i]
            if not link.is_toll:
                flow[link.source] -= share
                flow[link.target] += share
        assert {node: round(left, 9) for node, left in flow.items() if abs(left) > 1e-9} == {
            a: -1,
            b: 1,
        }
        one = route(hashed, a, b)
        assert set(one.links) <= set(found.links)
        assert set(one.shares) == {1.0}
        several += min(found.shares) < 1
    assert (several > 0) == ("rail_only" not in name)


def test_a_cluster_says_it_beside_its_fabric(tmp_path):
    path = tmp_path / "pod.toml"
    text = (
        'nodes = 4\nmachine = "dgx1v"\nfabric = "fat_tree"\nradix = 4\n'
        'equal_cost = "hashed"\nseed = 3\n'
    )
    path.write_text(text)

    assert load_topology(str(path)).router.switching == Switching("hashed", 3)
    path.write_text(text + '[routing]\nequal_cost = "split"\n')
    with pytest.raises(TopologyError, match="here its keys stand beside fabric"):
        load_topology(str(path))


def test_cables_side_by_side_are_paths_of_their_own():
    """Two switches with three cables between them, one of them slower: the two equal ones share
    what is split.
    """
    nodes = [Node("a", "gpu", machine=""), Node("b", "gpu", machine="")]
    nodes += [Node("s", "switch", machine=""), Node("t", "switch", machine="")]
    thick = [
        Cable("a", "s", "wire", 1, 9e9, 9e9, 1e-6, True),
        Cable("t", "b", "wire", 1, 9e9, 9e9, 1e-6, True),
    ]
    trunks = [Cable("s", "t", "wire", 1, rate, rate, 1e-6, True) for rate in (1e9, 2e9, 2e9)]

    split = route(build("t", "t", "t", nodes, [*thick, *trunks], switching=SPLIT), "a", "b")
    assert split.shares == (1.0, 0.5, 0.5, 1.0)
    assert split.bandwidth == 4e9
    taken = set()
    for seed in range(8):
        net = build("t", "t", "t", nodes, [*thick, *trunks], switching=Switching("hashed", seed))
        taken |= {net.links[i].name for i in route(net, "a", "b").links}
    assert taken == {"a>s", "s>t#1", "s>t#2", "t>b"}


def test_the_rule_is_part_of_a_topology(tmp_path):
    path = tmp_path / "board.toml"
    path.write_text(BOARD + '[routing]\nequal_cost = "hashed"\nseed = 7\n')
    board = load_topology(str(path))

    for same in (pickle.loads(pickle.dumps(board)), board.limit_peers("off"), board.scale(2.0)):  # noqa: S301
        assert same.router.switching == Switching("hashed", 7)
    path.write_text(to_toml(board))
    assert load_topology(str(path)).digest == board.digest
    assert fold(load_topology("switch:4,equal_cost=split")).machines == 4  # there is one path
    path.write_text(
        BOARD + '[nodes.nic]\nnames = ["nic0"]\nkind = "nic"\n[links.pcie3_x16]\n'
        'pairs = [["nic0", "gpu[0-3]"]]\n'
    )
    with pytest.raises(TopologyError, match="equal paths are split"):
        fold(load_topology(f"{path}x4"))
    assert fold(load_topology(f"{path}x4,equal_cost=first")).machines == 4


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('equal_cost = "hash"', "routing.equal_cost: unknown rule 'hash' (did you mean 'hashed'?)"),
        ("equal_cost = 3", "routing.equal_cost: must be one of first, hashed, split, got 3"),
        ("seed = 3", "routing.seed: needs equal_cost = 'hashed'"),
        (
            'equal_cost = "hashed"\nseed = -1',
            "routing.seed: must be a whole number from 0 to 9223372036854775807, got -1",
        ),
        ("queue_pairs = 2", "routing.queue_pairs: needs equal_cost = 'hashed'"),
        ("congested = 0.5", "routing.congested: needs congestion = 'tree' or 'lossy'"),
        (
            'congestion = "trees"',
            "routing.congestion: unknown congestion 'trees' (did you mean 'tree'?)",
        ),
        ("equalcost = 1", "routing.equalcost: unknown key (did you mean 'equal_cost'?)"),
    ],
)
def test_faults_in_a_file(tmp_path, text, fault):
    path = tmp_path / "board.toml"
    path.write_text(f"{BOARD}[routing]\n{text}\n")
    with pytest.raises(TopologyError) as caught:
        load_topology(str(path))
    assert list(caught.value.problems) == [f"{path}: {fault}"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("fat_tree:8,equal_cost=spit", "equal_cost: unknown rule 'spit' (did you mean 'split'?)"),
        ("fat_tree:8,seed=1", "seed: needs equal_cost=hashed"),
        ("dgx1vx2,equal_cost=split,seed=1", "seed: needs equal_cost=hashed"),
        ("fat_tree:8,queue_pairs=2", "queue_pairs: needs equal_cost=hashed"),
        ("fat_tree:8,congested=0.5", "congested: needs congestion=tree or congestion=lossy"),
        ("fat_tree:8,congestion=tree,congested=2", "congested: must be a number from 0 to 1, got"),
        ("fat_tree:8,congestion=tree,congested=-1", "congested: must be a number from 0 to 1, got"),
        (
            "fat_tree:8,congestion=tre,congested=1",
            "unknown congestion 'tre' (did you mean 'tree'?)",
        ),
        (
            "fat_tree:8,equal_cost=hashed,seed=x",
            "seed: must be a whole number from 0 to 999999999999999999, got 'x'",
        ),
    ],
)
def test_faults_inline(text, fault):
    with pytest.raises(TopologyError) as caught:
        load_topology(text)
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems


def global_cables(fly: Topology, links, a: int) -> Counter[int]:
    """Of links of a dragonfly with `a` routers in a group: those between groups."""
    named = [(link, fly.links[link]) for link in links]
    return Counter(
        i
        for i, link in named
        if link.source.startswith("router") and link.target.startswith("router")
        and int(link.source[6:]) // a != int(link.target[6:]) // a
    )  # fmt: skip


@cache
def plain_crossings(text: str, a: int, pair: tuple[str, str]) -> tuple[int, int]:
    """The global cables and the nodes of a way without a rule for equal paths."""
    plain = plain_machine(f"{text},equal_cost=first")
    found = route(plain, *pair)
    return len(global_cables(plain, found.links, a)), len(found.path)


plain_machine = cache(load_topology)


@pytest.mark.parametrize("choice", ["hashed", "split"])
@pytest.mark.parametrize(
    ("text", "a"),
    [
        ("dragonfly:72", 4),
        ("dragonfly:40,p=2,a=4,h=2,g=5", 4),  # two cables for two groups
        ("dragonfly:24,p=2,a=4,h=4,g=3", 4),  # eight
        ("dragonfly:6,p=2,a=1,h=2", 1),
        ("dgx1vx6,fabric=dragonfly,p=4,a=2,h=2,g=3,nic=ib_hdr", 2),
    ],
)
def test_equal_paths_of_a_dragonfly_cross_one_global_cable(text, a, choice):
    """Minimal routing: local, global, local, though there are ways of as few hops through a third
    group.
    """
    fly = load_topology(f"{text},equal_cost={choice}")
    pairs = list(itertools.permutations(fly.devices, 2))
    if "dgx1v" in text:
        pairs = [pair for pair in pairs if pair[0].endswith("gpu0")]
    if text == "dragonfly:72":  # one cable for two groups: a GPU of each router crosses them all
        pairs = list(itertools.permutations(fly.devices[::2], 2))
    taken = set()
    for pair in pairs:
        found = route(fly, *pair)
        crossed = global_cables(fly, found.links, a)
        ordinary, length = plain_crossings(text, a, pair)
        parts = {i: s for i, s in zip(found.links, found.shares, strict=True) if i in crossed}
        assert sum(parts.values()) == pytest.approx(ordinary), pair
        ends = {(fly.links[i].source, fly.links[i].target) for i in crossed}
        groups = {tuple(int(name[6:]) // a for name in end) for end in ends}
        assert len(groups) == ordinary <= 1, pair
        assert len(found.path) <= length, pair
        taken |= set(crossed)
    if "dgx1v" not in text:  # there, not every pair has been asked for
        assert taken == set(global_cables(fly, range(len(fly.links)), a))


def test_equal_paths_of_a_dragonfly_in_a_cluster_file(tmp_path):
    """It is the dragonfly of the inline text, whose routes are those above."""
    path = tmp_path / "pod.toml"
    path.write_text(
        'nodes = 6\nmachine = "dgx1v"\nfabric = "dragonfly"\np = 4\na = 2\nh = 2\ng = 3\n'
        'nic = "ib_hdr"\nequal_cost = "split"\n'
    )
    here = load_topology(str(path))
    typed = load_topology("dgx1vx6,fabric=dragonfly,p=4,a=2,h=2,g=3,nic=ib_hdr,equal_cost=split")

    for pair in itertools.product(here.devices[:1], here.devices[8:]):
        assert route(here, *pair) == route(typed, *pair)
        crossed = global_cables(here, route(here, *pair).links, 2)
        assert len({int(here.links[i].target[6:]) // 2 for i in crossed}) <= 1


def test_shares_are_exact_where_paths_are_many():
    """A torus of 8 x 8 has 70 shortest ways to the far corner of a 4 x 4 quarter; half go along x
    first.
    """
    torus = load_topology("torus:8x8,equal_cost=split")
    found = route(torus, "gpu0", "gpu27")  # 3 right, 3 down
    at = {
        (torus.links[i].source, torus.links[i].target): s
        for i, s in zip(found.links, found.shares, strict=True)
    }

    assert math.comb(6, 3) == 20
    assert at["router0", "router1"] == at["router0", "router8"] == 0.5
    # Through (1, 1): 2 ways to get there, C(4, 2) to go on.
    assert at["router1", "router9"] == pytest.approx(float(Fraction(6, 20)))
    assert sum(s for (a, _), s in at.items() if a == "router9") == pytest.approx(
        float(Fraction(12, 20))
    )
