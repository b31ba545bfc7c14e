"""Whatever is typed or written, the only error is a `TopologyError`. `make fuzz` tries ten thousand
of each.
"""

from __future__ import annotations

import contextlib
import os

from hypothesis import HealthCheck, given, settings, strategies as st

from simreduce.errors import TopologyError
from simreduce.files import data_dir
from simreduce.topology import load_topology
from tests.topology.importers.test_fuzz import INPUTS, THOROUGH, check_memory

DOCUMENT = (data_dir("topologies") / "dgx1v.toml").read_text()
SCRAPS = [
    "",
    "true",
    "-1",
    "nan",
    '"x"',
    "[]",
    "{}",
    "=",
    "\n",
    "[links.qpi]",
    '"gpu0"',
    "extends = 'dgx1v'\n",
    "\0",
    "é",
]


def only_topology_errors(text: str, overrides: dict[str, str | int] | None = None) -> None:
    """Whatever is wrong is told in a `TopologyError`; any other exception fails the test."""
    with contextlib.suppress(TopologyError):
        assert load_topology(text, overrides).devices


@settings(
    max_examples=INPUTS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(DOCUMENT)),
            st.integers(0, 30),
            st.one_of(st.sampled_from(SCRAPS), st.text()),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_document_raises_anything_but_a_topology_error(tmp_path, edits):
    text = DOCUMENT
    for at, length, scrap in edits:
        text = text[:at] + scrap + text[at + length :]
    path = tmp_path / "fuzz.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    only_topology_errors(str(path))


TOML_VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.sampled_from(["gpu0", "25 GB/s", ""]),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@settings(
    max_examples=INPUTS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    value=TOML_VALUES,
    key=st.sampled_from(
        ["title", "sources", "extends"]
        + [
            f"nodes.gpu.{key}"
            for key in (
                "names",
                "kind",
                "model",
                "memory",
                "memory_bandwidth",
                "machine",
                "transit",
                "reduces",
            )
        ]
        + [
            f"links.qpi.{key}"
            for key in ("pairs", "lanes", "class", "bandwidth", "achievable", "latency")
        ]
        + ["nodes", "links", "nodes.gpu", "links.qpi", "links.new.pairs", "links.qpi.holds_lane"]
    ),
)
def test_no_value_of_the_wrong_type_raises_anything_but_a_topology_error(tmp_path, value, key):
    path = tmp_path / "fuzz.toml"
    section, _, last = key.rpartition(".")
    table = f"[{section}]\n" if section else ""
    path.write_text(
        f'extends = "dgx1v"\n{table}{last} = {toml(value)}\n'
        if key != "extends"
        else f"extends = {toml(value)}"
    )

    only_topology_errors(str(path))


def toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower()


ODD = st.sampled_from(["x", "", "0", "-1", "2.5", "yes", "9" * 20])
SMALL = st.integers(1, 6).map(str)
"""What the texts mean is built, so it is small."""
WHOLE = st.one_of(*[SMALL] * 4, *[st.integers(7, 64).map(str)] * 2, ODD)
DIMS = st.lists(st.one_of(SMALL, SMALL, SMALL, ODD), min_size=1, max_size=4).map("x".join)
RATES = st.sampled_from(["25 GB/s", "12.5GB/s", "1us", "2 us", "0", "1e99 s", "x"])
VALUES = {
    "fabric": st.sampled_from(
        ["switch", "fat_tree", "dragonfly", "torus", "rail_optimised", "rail_only", "ring"]
    ),
    "nic": st.sampled_from(["ib_edr", "ib_ndr", "tcp_10", "nvlink2"]),
    "equal_cost": st.sampled_from(["hashed", "split", "first", "splits"]),
    "dims": DIMS,
    "levels": st.sampled_from(["2", "3", "3", "4"]),
    "reduce": st.sampled_from(["yes", "no", "1"]),
    **dict.fromkeys(("bandwidth", "latency"), RATES),
    **dict.fromkeys(
        ("pods", "radix", "oversubscription", "a", "p", "h", "g", "unit", "seed", "shuffle"), WHOLE
    ),
}


@st.composite
def inline(draw: st.DrawFn) -> str:
    """Machines and networks with settings that they may or may not have; often ones that go
    together.
    """
    head, keys = draw(
        st.sampled_from(
            [
                ("fat_tree:", ("levels", "pods", "radix", "oversubscription", "shuffle")),
                ("dragonfly:", ("a", "p", "h", "g")),
                ("torus:", ("shuffle", "equal_cost")),
                ("dgx1vx", ("fabric", "levels", "pods", "radix", "dims", "a", "g")),
                ("gh200x", tuple(VALUES)),
                ("ring:", ("bandwidth", "latency", "seed")),
                ("full:", ("bandwidth", "latency", "fabric")),
                ("switch:", ("reduce", "latency", "shuffle")),
            ]
        )
    )
    size = draw(DIMS if head == "torus:" else WHOLE)
    chosen = draw(st.lists(st.sampled_from(keys), max_size=4, unique=draw(st.integers(0, 9)) > 0))
    return ",".join([head + size, *(f"{key}={draw(VALUES[key])}" for key in chosen)])


@settings(max_examples=INPUTS, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=20),
        inline(),
        st.from_regex(
            r"\A(dgx1v|dgx1|torus)(:|x)[0-9]{0,2}(,(nic|fabric|)=?[a-z0-9./ ]{0,6}){0,3}\Z"
        ),
    ),
    overrides=st.dictionaries(
        st.sampled_from(["links.qpi.bandwidth", "latency", "nic", "levels", "pods", "", "title"]),
        st.one_of(st.text(max_size=8), st.integers(), st.booleans()),
        max_size=2,
    ),
)
def test_no_text_or_override_raises_anything_but_a_topology_error(text, overrides):
    only_topology_errors(text, overrides)


if THOROUGH in os.environ:

    def test_it_took_no_more_memory_than_it_may():
        check_memory()
