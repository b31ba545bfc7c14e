"""Pictures of machines: nothing missing, nothing twice, nothing on top of something else."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.report.drawing import Drawing, Mark, Rect, Text, polyline, text_width, to_svg
from simreduce.report.pictures import machine_picture
from simreduce.report.pictures.scene import link_pairs
from simreduce.report.pictures.style import draw_line
from simreduce.topology import Cable, Node, Topology, build, load_topology, shipped
from simreduce.topology.graph import assemble
from simreduce.topology.routing.rules import TorusRule
from tests.report.pictures.drawings import flat
from tests.thorough import corners, examples

SVG = "{http://www.w3.org/2000/svg}"
NETWORKS = [
    *("ring:2", "ring:8", "ring:64", "ring:1024", "full:2", "full:8", "full:16", "full:100"),
    *("switch:2", "switch:20", "switch:4096", "switch:8,reduce=yes"),
    *(
        "fat_tree:4",
        "fat_tree:16,radix=4",
        "fat_tree:100,radix=8,oversubscription=2",
        "fat_tree:4096",
    ),
    *(
        "torus:2x2",
        "torus:4x3,shuffle=1",
        "torus:32x2",
        "torus:2x2x2",
        "torus:4x4x4",
        "torus:12x9x11",
    ),
    *("dgx1vx1", "dgx1vx2", "gh200x12", "dgx-h100x128", "dgx1vx6,fabric=fat_tree,radix=6"),
    *("dgx-a100x128,fabric=fat_tree,nic=ib_hdr", "gb200-nvl72x4,fabric=fat_tree,radix=36"),
]
MACHINES = [*(name for name, _ in shipped()), *NETWORKS]


def groups(drawing: Drawing, kind: str) -> list[Mark]:
    """The groups of a kind that are not inside another picture."""
    return [s for s in drawing.shapes if isinstance(s, Mark) and s.kind.split()[:1] == [kind]]


def inner(node: Mark) -> int:
    """The links that the box of several nodes stands for."""
    found = re.search(r"([0-9,]+) links? among them$", node.title)
    return int(found[1].replace(",", "")) if found else 0


def boxes(drawing: Drawing) -> list[tuple[Rect, list[Text]]]:
    """The boxes of nodes, in whatever frame, and their texts; of a stack the box on top."""
    found, shapes = [], list(drawing.shapes)
    for shape in shapes:
        if isinstance(shape, Mark):
            if shape.kind.startswith("node"):
                texts = [s for s in shape.shapes if isinstance(s, Text)]
                found.append(([s for s in shape.shapes if isinstance(s, Rect)][-1], texts))
            else:
                shapes += shape.shapes
    return found


def rectangles(drawing: Drawing) -> list[Rect]:
    return [box for box, _ in boxes(drawing)]


def area(shape: Rect | Text) -> tuple[float, float, float, float]:
    """Left, top, right, bottom."""
    if isinstance(shape, Rect):
        return shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
    width = text_width(shape.text, shape.size) * (1.1 if shape.bold else 1)
    left = shape.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * width
    return left, shape.y - 0.75 * shape.size, left + width, shape.y + 0.2 * shape.size


def overlapping(areas: list[tuple[float, float, float, float]]) -> list[tuple]:
    """The pairs that cover each other."""
    ordered = sorted(areas)
    return [
        (a, b)
        for i, a in enumerate(ordered)
        for b in itertools.takewhile(lambda b, a=a: b[0] < a[2] - 1e-6, ordered[i + 1 :])
        if a[1] < b[3] - 1e-6 and b[1] < a[3] - 1e-6
    ]


def check(topology) -> Drawing:
    """What is true of every picture."""
    drawing = picture(topology)
    nodes, links = groups(drawing, "node"), groups(drawing, "link")
    texts = [shape for shape in flat(drawing.shapes) if isinstance(shape, Text)]
    everything = [area(shape) for shape in [*rectangles(drawing), *texts]]

    assert len(topology.nodes) == sum(node.count for node in nodes)
    assert len(link_pairs(topology)) == sum(link.count for link in links) + sum(map(inner, nodes))
    single = [node.title.split(": ")[0] for node in nodes if node.count == 1]
    assert len(single) == len(set(single))
    assert set(single) <= set(topology.nodes)
    assert [] == overlapping([area(box) for box in rectangles(drawing)])
    assert [] == overlapping([area(text) for text in texts])
    for (left, _, right, _), inside in [(area(box), texts) for box, texts in boxes(drawing)]:
        assert all(left <= area(text)[0] and area(text)[2] <= right for text in inside)
    assert all(left >= 0 and top >= 0 for left, top, _, _ in everything)
    assert all(right <= drawing.width and low <= drawing.height for _, _, right, low in everything)
    return drawing


@cache
def load(name: str) -> Topology:
    return load_topology(name)


@lru_cache(128)  # not all that are drawn at random
def picture(topology: Topology) -> Drawing:
    return machine_picture(topology)


@pytest.mark.parametrize("name", corners(MACHINES, 30))
def test_every_node_and_link_is_drawn_or_counted_once_and_nothing_overlaps(name):
    drawing = check(load(name))
    root = ET.fromstring(to_svg(drawing))  # noqa: S314 - our own

    drawn = [
        g for g in root.iter(f"{SVG}g") if g.get("class", "").split()[:1] in (["node"], ["link"])
    ]
    assert all(g.find(f"{SVG}title").text for g in drawn)
    assert drawing.width <= 1800, "fits a screen"
    assert len(drawn) <= 500, "and can be read"


def evenly(points, count):
    """The x and the y of so many places on a polyline, from its one end to its other."""
    x, y = np.array(points).T
    lengths = np.concatenate([[0.0], np.hypot(np.diff(x), np.diff(y)).cumsum()])
    places = np.linspace(0, lengths[-1], count)
    return np.interp(places, lengths, x), np.interp(places, lengths, y)


def views(shapes):
    """The shapes of a picture, and those of every frame in it."""
    yield shapes
    for shape in shapes:
        if isinstance(shape, Mark) and shape.kind == "detail":
            yield from views(shape.shapes)


@pytest.mark.parametrize("name", MACHINES)
def test_no_line_runs_under_a_box(name):
    """Only the two boxes that it joins are touched, and these at their edges."""
    for shapes in views(picture(load(name)).shapes):
        view = Drawing(
            0, 0, tuple(s for s in shapes if not (isinstance(s, Mark) and s.kind == "detail"))
        )
        inside = [
            (x + 3, y + 3, right - 3, low - 3) for x, y, right, low in map(area, rectangles(view))
        ]
        lefts, tops, rights, lows = np.array(inside).reshape(-1, 4, 1).swapaxes(0, 1)
        for link in groups(view, "link"):
            x, y = evenly(polyline(link.shapes[0].points), 101)
            under = ((lefts < x) & (x < rights) & (tops < y) & (y < lows)).any(axis=1)

            assert not under.any(), link.title


@pytest.mark.parametrize("name", [name for name, _ in shipped() if "gb200" not in name])
def test_shipped_machines_are_drawn_node_by_node(name):
    """But for a rack of 72 GPUs, nothing is counted instead of drawn."""
    drawing = check(load_topology(name))

    assert {1} == {g.count for kind in ("node", "link") for g in groups(drawing, kind)}


def test_equal_machines_on_a_network_are_drawn_once():
    """The frame holds one of the four machines, with all that it is made of."""
    one, four = load_topology("dgx1v"), machine_picture(load_topology("dgx1vx4"))
    (frame,) = groups(four, "detail")
    inside = Drawing(0, 0, frame.shapes)

    assert {"n0, one of 4 alike"} <= {s.text for s in frame.shapes if isinstance(s, Text)}
    assert len(one.nodes) == len(groups(inside, "node"))
    assert len(link_pairs(one)) == len(groups(inside, "link"))
    assert {"n0", "n1", "n2", "n3", "switch0"} == {
        s.text
        for node in groups(four, "node")
        for s in node.shapes
        if isinstance(s, Text) and s.size == 11
    }


def test_machines_that_differ_are_all_drawn():
    """Two machines of which one has a slower NIC get a frame each."""
    nodes = [Node("s", "switch", machine="")]
    wires = []
    for i in range(4):
        nodes += [
            Node(f"n{i}.gpu0", "gpu", machine=str(i)),
            Node(f"n{i}.nic0", "nic", machine=str(i)),
        ]
        rate = 10e9 if i == 2 else 20e9
        wires.append(Cable(f"n{i}.gpu0", f"n{i}.nic0", "pcie3_x16", 1, rate, rate, 1e-6, True))
        wires.append(Cable(f"n{i}.nic0", "s", "ib_edr", 1, 12e9, 12e9, 1e-6, False))
    drawing = check(build("four", "", "", nodes, wires))

    headings = [
        shape.text
        for g in groups(drawing, "detail")
        for shape in g.shapes
        if isinstance(shape, Text)
    ]
    assert ["n0, one of 3 alike", "n2"] == headings


def test_groups_of_a_dragonfly_have_frames():
    """Five groups of three routers, each linked to all of its group and to one of every other."""
    nodes, wires = [], []
    for g, r in itertools.product(range(5), range(3)):
        nodes += [Node(f"r{3 * g + r}", "switch", machine=""), Node(f"gpu{3 * g + r}", "gpu")]
        wires.append((f"gpu{3 * g + r}", f"r{3 * g + r}"))
        wires += [(f"r{3 * g + r}", f"r{3 * g + other}") for other in range(r)]
    wires += [
        (f"r{3 * i + j % 3}", f"r{3 * j + i % 3}") for i, j in itertools.combinations(range(5), 2)
    ]
    made = [Cable(a, b, "cable", 1, 1e9, 1e9, 1e-6, False) for a, b in wires]
    drawing = check(build("dragonfly", "", "", nodes, made))
    frames = [shape for shape in drawing.shapes if isinstance(shape, Rect) and shape.height > 100]
    boxes = [area(box) for box in rectangles(drawing)]

    assert 5 == len(frames)
    assert {6} == {
        sum(f.x <= left and right <= f.x + f.width for left, _, right, _ in boxes) for f in frames
    }


def test_machines_on_a_torus_stand_in_a_grid():
    """Six machines of a GPU and a NIC on 3 x 2 routers, in the places that routes give them."""
    nodes, wires = [], []
    for i in range(6):
        nodes += [
            Node(f"n{i}.gpu0", "gpu", machine=str(i)),
            Node(f"n{i}.nic0", "nic", machine=str(i)),
        ]
        wires.append(Cable(f"n{i}.gpu0", f"n{i}.nic0", "pcie3_x16", 1, 12e9, 12e9, 1e-6, True))
    pairs = [(f"n{i}.nic0", f"router{i}") for i in range(6)]
    pairs += [(f"router{i}", f"router{i // 3 * 3 + (i + 1) % 3}") for i in range(6)]
    pairs += [(f"router{i}", f"router{i + 3}") for i in range(3)]
    wires += [Cable(a, b, "ib_edr", 1, 12e9, 12e9, 1e-6, False) for a, b in pairs]
    nodes += [Node(f"router{i}", "switch", machine="") for i in range(6)]
    drawing = check(build("t", "", "", nodes, wires, TorusRule((1, 3, 5, 7, 9, 11), (3, 2), 6)))
    (frame,) = groups(drawing, "detail")
    routers = [area(g.shapes[0])[:2] for g in groups(drawing, "node") if "switch" in g.kind]

    assert [3, 2] == [len({place[axis] for place in routers}) for axis in (0, 1)]
    assert "n0, one of 6 alike" in {shape.text for shape in frame.shapes if isinstance(shape, Text)}


def test_the_neighbours_of_a_ring_stand_side_by_side():
    """Whatever they are called: GPUs 0 to 7 in a row, each linked to the third next."""
    nodes = [Node("cpu0", "cpu"), *(Node(f"gpu{i}", "gpu") for i in range(8))]
    ring = [(3 * i) % 8 for i in range(8)]
    wires = [Cable("cpu0", f"gpu{i}", "pcie3_x16", 1, 12e9, 12e9, 0, True) for i in range(8)]
    wires += [
        Cable(f"gpu{a}", f"gpu{b}", "nvlink2", 1, 24e9, 24e9, 0, True)
        for a, b in itertools.pairwise(ring)
    ]
    drawing = check(build("ring", "", "", nodes, wires))
    row = sorted((area(g.shapes[0])[0], g.title.split(":")[0]) for g in groups(drawing, "node")[:])
    order = [int(name[3:]) for _, name in row if name.startswith("gpu")]

    assert order in (ring, ring[::-1])


def test_lines_are_wider_for_more_bandwidth():
    """PCIe, one NVLink, two NVLinks of a DGX-1."""
    links = groups(machine_picture(load_topology("dgx1v")), "link")
    widths = {link.title.split("\n")[1].split(":")[0]: link.shapes[0].width for link in links}

    assert widths["pcie3_x16"] < widths["nvlink2"] < widths["qpi x 2"] < widths["nvlink2 x 2"]


@given(st.floats(1e6, 1e14), st.floats(1.001, 1e3))
def test_any_line_is_wider_for_more_bandwidth_but_never_wider_than_a_box(rate, factor):
    thin, wide = (draw_line((), "cable", each, ["cable"]).width for each in (rate, rate * factor))
    assert 0 < thin < wide < 11


def test_links_tell_their_figures():
    links = groups(machine_picture(load_topology("dgx1v")), "link")

    assert "gpu0 - gpu3\nnvlink2 x 2: 48 GB/s of nominal 50 GB/s, 1.8 us, per direction" in {
        link.title for link in links
    }


def test_figures_that_are_no_wires_are_named_in_the_key():
    """What copies through the host take is no line, but is not left out."""
    texts = [
        s.text for s in flat(machine_picture(load_topology("dgx1v")).shapes) if isinstance(s, Text)
    ]

    assert (
        "Besides their links, copies through the host, at a gpu: staged_pcie3, 10 GB/s, 5.5 us."
        in texts
    )
    assert "nvlink2 x 2: 48 GB/s of nominal 50 GB/s, 1.8 us (8 links)" in texts


def test_directions_that_differ_and_links_without_a_way_back_say_so():
    nodes = [Node("gpu0", "gpu"), Node("gpu1", "gpu"), Node("gpu2", "gpu")]
    both = build(
        "",
        "",
        "",
        nodes,
        [
            Cable("gpu0", "gpu1", "a", 1, 8e9, 8e9, 0, True),
            Cable("gpu1", "gpu2", "b", 1, 8e9, 8e9, 0, True),
        ],
    )
    there, back, single, _ = both.links
    drawing = check(
        assemble("", "", "", nodes, [there, replace(back, bandwidth=2e9), replace(single, id=2)])
    )

    assert [
        "gpu0 - gpu1\nthere: a: 8 GB/s, 0 ns\nback: a: 2 GB/s of nominal 8 GB/s, 0 ns",
        "gpu1 - gpu2\none way: b: 8 GB/s, 0 ns",
    ] == sorted(link.title for link in groups(drawing, "link"))


def test_a_link_without_a_way_back_is_not_counted_with_cables_of_the_same_figures():
    """Neither as one of several lines, nor in the key."""
    nodes = [Node("gpu0", "gpu"), Node("gpu1", "gpu")]
    twice = build("", "", "", nodes, [Cable("gpu0", "gpu1", "a", 1, 8e9, 8e9, 0, True)] * 2)
    drawing = check(assemble("", "", "", nodes, twice.links[:3]))
    texts = {s.text for s in flat(drawing.shapes) if isinstance(s, Text)}

    assert [
        "gpu0 - gpu1\na: 8 GB/s, 0 ns, per direction",
        "gpu0 - gpu1\none way: a: 8 GB/s, 0 ns",
    ] == sorted(link.title for link in groups(drawing, "link"))
    assert {"a: 8 GB/s, 0 ns (1 link)", "a: 8 GB/s, 0 ns, one way (1 link)"} < texts


NAMES = st.text(st.sampled_from("ab<>&\"'.0123456789é\x07\n"), min_size=1, max_size=12)
KINDS = ("gpu", "gpu", "gpu", "cpu", "pcie_switch", "nvswitch", "nic", "switch")


@st.composite
def machines(draw):
    """Any graph: nodes of all kinds under any names, linked in any way or not at all."""
    names = draw(st.lists(NAMES, min_size=1, max_size=40, unique=True))
    switches = draw(st.booleans())
    kinds = [kind for kind in KINDS if switches or kind != "switch"]
    nodes = [Node(name, draw(st.sampled_from(kinds))) for name in names]
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=80, unique=True
        )
    )
    figures = st.tuples(
        st.sampled_from(["nvlink2", "pcie3_x16", "odd <&>"]), st.sampled_from([1e9, 25e9])
    )
    wires = []
    for a, b in pairs:
        if a != b:
            link_class, rate = draw(figures)
            wires.append(Cable(a, b, link_class, 1, rate, rate, 1e-6, True))
    return build(draw(NAMES), draw(NAMES), "", nodes, wires)


@settings(max_examples=examples(60))
@given(machines())
def test_any_machine_draws(topology):
    """The same promises for machines that nobody would build; and names are escaped."""
    root = ET.fromstring(to_svg(check(topology)))  # noqa: S314
    titles = {
        g.find(f"{SVG}title").text for g in root.iter(f"{SVG}g") if g.get("data-count") == "1"
    }

    assert all(isinstance(title, str) for title in titles - {None})


def test_names_are_escaped():
    nodes = [Node("<b>&\"'", "gpu"), Node("\x00\ud800", "gpu")]
    text = to_svg(machine_picture(build("</svg>", "a & b", "", nodes, [])))
    root = ET.fromstring(text)  # noqa: S314

    shown = {element.text for element in root.iter(f"{SVG}text")}
    assert {"<b>&\"'", r"\x00\ud800", "</svg>", "a & b"} <= shown


def test_equal_machines_give_equal_bytes_in_any_process():
    """No order of a set shows, whatever the hash seed."""
    code = (
        "from simreduce.topology import load_topology as load\n"
        "from simreduce.report.drawing import to_svg\n"
        "from simreduce.report.pictures import *\n"
        "import hashlib\n"
        "names = ['dgx1v', 'dgx1vx6,fabric=fat_tree,radix=6', 'torus:3x3', 'gb200-nvl72']\n"
        "text = ''.join(to_svg(machine_picture(load(n))) for n in names)\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert 1 == len(seen)
