"""Scenarios from files: what is read, what overrides what, and every fault with its place."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from simreduce.engine import IDEAL, NOMINAL, RUNTIMES
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.setup import BY_STRATEGY
from simreduce.errors import InputError, ScenarioError
from simreduce.files import data_dir
from simreduce.planners.layouts import layout
from simreduce.planners.nccl.environment import allows
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario_files import load_scenario
from simreduce.topology import load_topology
from tests.thorough import examples

SHIPPED = [
    path
    for path in sorted((Path(__file__).parents[1] / "scenarios").glob("*.toml"))
    if "\n[replicas]\n" not in path.read_text("utf-8")
]
SMALL = 'topology = "full:2"\nworkload = "bytes:1M"\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of that name, in the folder where the test then is."""
    monkeypatch.chdir(tmp_path)

    def _write(content: str | bytes, name: str = "mine.toml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return _write


def _refused(text: str, *options: str | None) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(text, **dict(zip(("runtime", "calibration"), options, strict=False)))
    return caught.value.problems


def test_factors_of_links_reach_the_network(write):
    """Links of the class have so much of their bandwidth, the others all of it."""
    text = 'topology = "dgx1vx2"\nworkload = "bytes:4M"\n[link_factors]\nib_edr = 0.5'
    slow, usual = (
        {(link.source, link.target): link for link in topology.links}
        for topology in (load_scenario(write(text)).setup.topology, load_topology("dgx1vx2"))
    )

    assert {name: link.link_class for name, link in usual.items()} == {
        name: link.link_class for name, link in slow.items()
    }
    assert {(0.5 if link.link_class == "ib_edr" else 1.0) for link in usual.values()} == {
        slow[name].bandwidth / link.bandwidth for name, link in usual.items()
    }


def test_a_scenario_says_what_to_rank(write):
    """Every key of the file arrives where it belongs."""
    scenario = load_scenario(
        write(
            """
title = "a question"
topology = "dgx1v"
workload = "bytes:4M"
runtime = "ideal"
calibration = "dgx1p-tf2018"
strategies = ["ring", "xring#2+packs=8+mean"]
repeat = 5
[topology_overrides]
"links.qpi.bandwidth" = "9.6 GB/s"
"""
        )
    )

    assert ("mine", "a question", "dgx1v", "bytes:4M") == (
        scenario.name,
        scenario.title,
        scenario.setup.topology.name,
        scenario.workload.name,
    )
    assert {2 * 9.6e9} == {
        link.bandwidth for link in scenario.setup.topology.links if link.link_class == "qpi"
    }
    assert IDEAL is scenario.setup.runtime
    assert load_calibration("dgx1p-tf2018") == scenario.setup.calibration
    assert (parse_strategy("ring"), parse_strategy("xring#2+packs=8+mean")) == scenario.strategies
    assert 5 == scenario.repeat


def test_a_topology_and_a_workload_are_enough(write):
    """Runtimes by strategy, no fitted constant, every strategy, one all-reduce; titled like the
    file.
    """
    scenario = load_scenario(write(SMALL))

    assert ("mine", BY_STRATEGY, NOMINAL, None, 1) == (
        scenario.title,
        scenario.setup.runtime,
        scenario.setup.calibration,
        scenario.strategies,
        scenario.repeat,
    )
    assert load_scenario(write(SMALL + 'strategies = ["all"]')).strategies is None


def test_the_command_line_wins_over_the_file(write):
    """Runtime and calibration, also when those of the file are wrong."""
    path = write(SMALL + 'runtime = "x"\ncalibration = "y"\n')
    scenario = load_scenario(path, runtime="ideal", calibration="nominal")

    assert (IDEAL, NOMINAL) == (scenario.setup.runtime, scenario.setup.calibration)


def test_files_are_looked_for_beside_the_scenario(write):
    """Then from where the user is."""
    write('extends = "dgx1v"\ntitle = "beside"', "folder/machine.toml")
    write("elements\n3\n", "folder/list.csv")
    write('title = "beside"', "folder/constants.toml")
    write("elements\n5\n", "here.csv")
    path = write(
        'topology = "machine.toml"\nworkload = "list.csv"\ncalibration = "constants.toml"',
        "folder/a.toml",
    )
    scenario = load_scenario(path)

    assert ("beside", 3, "beside") == (
        scenario.setup.topology.title,
        scenario.workload.elements,
        scenario.setup.calibration.title,
    )
    assert (
        5
        == load_scenario(
            write('topology = "full:2"\nworkload = "here.csv"', "folder/b.toml")
        ).workload.elements
    )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_scenario_is_found_by_its_name(path, tmp_path, monkeypatch):
    """From any folder; it is the file, and it has a title of its own."""
    monkeypatch.chdir(tmp_path)
    by_name = load_scenario(path.stem)

    assert load_scenario(str(path)) == by_name
    assert path.stem == by_name.name
    assert by_name.title not in ("", by_name.name)
    assert path.parent.samefile(data_dir("scenarios"))


def test_every_fault_of_a_scenario_is_told_at_once(write):
    """In the file itself and in everything that it names, each with its key."""
    path = write(
        """
titel = "x"
title = 5
topology = "dgxv"
workload = "resnet5"
runtime = "tensrflow"
calibration = "missing.toml"
strategies = ["rng", "ring+packs=0", "ring"]
repeat = 0
topology_overrides = 3
"""
    )

    assert (
        "mine.toml: titel: unknown key (did you mean 'title'?)",
        "mine.toml: title: must be text, got 5",
        "mine.toml: repeat: must be a whole number from 1 to 1000, got 0",
        "mine.toml: topology_overrides: must be a table, got 3",
        (
            "mine.toml: topology: no topology 'dgxv' (did you mean 'dgx1v'?); `simreduce topo "
            "list` "
            "names what is shipped; inline are dragonfly:N, dragonfly_plus:N, fat_tree:N, "
            "full:N, ring:N, switch:N, "
            "torus:AxB and MACHINExN; or give the path of a file"
        ),
        (
            "mine.toml: runtime: unknown runtime 'tensrflow' (did you mean 'tensorflow'?); one of "
            "tensorflow, nccl, ideal"
        ),
        "mine.toml: calibration: missing.toml: there is no such file",
        (
            "mine.toml: workload: no workload 'resnet5' (did you mean 'resnet50'?); a file ends in "
            ".csv or .toml, one gradient is 'bytes:64M', a decoder by its figures "
            "'transformer:layers=48,hidden=8192,heads=64,vocab=51200'"
        ),
        (
            "mine.toml: strategies[0]: strategy (rng) contains invalid alg rng (did you "
            "mean "
            "'ring'?)"
        ),
        (
            "mine.toml: strategies[1]: ring+packs=0: packs: '0': the number of packs is a whole "
            "number "
            "from 1 to 4096, for example packs=8"
        ),
    ) == _refused(path)


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (
            "",
            [
                "topology: missing; a shipped machine, a file, or a machine written inline",
                "workload: missing; a shipped model, a file, or one gradient such as `bytes:64MiB`",
            ],
        ),
        (
            "topology = 1\nworkload = []",
            ["topology: must be text, got 1", "workload: must be text, got []"],
        ),
        (SMALL + "runtime = {}", ["runtime: must be text, got {}"]),
        (SMALL + "repeat = true", ["repeat: must be a whole number from 1 to 1000, got true"]),
        (SMALL + "repeat = 1001", ["repeat: must be a whole number from 1 to 1000, got 1001"]),
        (SMALL + "repeat = 1.0", ["repeat: must be a whole number from 1 to 1000, got 1.0"]),
        (SMALL + 'strategies = ["all", "ring"]', ['strategies: "all" stands alone']),
        (
            SMALL + 'strategies = ["ring", "direct", "ring "]',
            ["strategies: ring stands there 2 times"],
        ),
        (SMALL + 'strategies = ["", "ring"]', ["strategies[0]: an empty strategy"]),
        (
            SMALL + "strategies = []",
            ['strategies: must be a list, each a strategy such as "all", got []'],
        ),
        (
            SMALL + 'strategies = [1, "rng", "all"]',
            [
                'strategies: "all" stands alone',
                "strategies[0]: must be text, got 1",
                ("strategies[1]: strategy (rng) contains invalid alg rng (did you mean 'ring'?)"),
            ],
        ),
        (
            SMALL + 'strategies = "ring"',
            ["strategies: must be a list, each a strategy such as \"all\", got 'ring'"],
        ),
        (
            SMALL + '[topology_overrides]\nbandwith = "1 GB/s"',
            ["topology: full:2: bandwith: unknown key (did you mean 'bandwidth'?)"],
        ),
        (
            SMALL + "[link_factors]\ncabel = 0.8",
            [("link_factors: full:2: no link, node or link class 'cabel' (did you mean 'cable'?)")],
        ),
        (
            SMALL + "[link_factors]\ncable = -1",
            ["link_factors.cable: must be a number from 0 to 1000, got -1"],
        ),
        (
            SMALL + '[link_factors]\n"gpu0>gpu1" = 0',
            [("link_factors: full:2: gpu0>gpu1 is cut and gpu1>gpu0 is not; cut both: gpu0<>gpu1")],
        ),
        (SMALL + "title = 0x" + "f" * 5000, ["title: must be text, got this whole number"]),
        ("x = " + "[" * 9999, ["line 1: nested too deeply, more than 64 levels"]),
        (b"\xff", ["line 1 is not UTF-8 text"]),
        (
            "topology",
            ["not valid TOML: Expected '=' after a key in a key/value pair (at end of document)"],
        ),
    ],
)
def test_a_scenario_that_cannot_be_run(write, content, messages):
    """Each fault begins with the file."""
    assert tuple(f"mine.toml: {message}" for message in messages) == _refused(write(content))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dgx1v-resnet5",
            "no scenario 'dgx1v-resnet5' (did you mean 'dgx1v-resnet50'?); a file ends in .toml",
        ),
        (
            "",
            (
                "no scenario ''; shipped: dgx-h100-gpt2-ddp, dgx1p-step-of-five, dgx1v-resnet50, "
                "step-dgx-h100x4-gpt2-xl-fsdp, step-dgx1p-resnet50, step-p3x4-parameter-servers, "
                "step-p3x6-stragglers; a file ends in .toml"
            ),
        ),
        ("missing.toml", "missing.toml: there is no such file"),
        (".", ".: is a directory, not a file"),
        ("a\x00.toml", "'a\\x00.toml': cannot be read: embedded null byte"),
    ],
)
def test_a_scenario_that_is_not_there(text, message):
    """With the nearest shipped one, or the system's reason."""
    assert (message,) == _refused(text)


def test_a_name_that_no_file_can_have_is_refused_in_one_line():
    """However long it is, and wherever it is written."""
    assert len(_refused("x" * 5000)[0]) < 300
    assert "File name too long" in _refused("x" * 5000 + ".toml")[0]


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".csv", "a\\u0000.csv", "a\\u0000"])
@pytest.mark.parametrize("key", ["workload", "calibration", "topology"])
def test_a_scenario_that_names_what_no_file_can_be(write, key, name):
    """It is told like any other fault."""
    others = {"topology": '"full:2"', "workload": '"bytes:1M"', "calibration": '"nominal"'}
    content = "\n".join(f"{k} = {v}" for k, v in {**others, key: f'"{name}"'}.items())

    (message,) = _refused(write(content))
    assert message.startswith(f"mine.toml: {key}: ")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_scenario_crosses_to_another_process(write, runtime):
    """Whatever its runtime is made of."""
    scenario = load_scenario(
        write(SMALL + 'strategies = ["ring"]\nrepeat = 3'),
        runtime=runtime,
        calibration="dgx1p-tf2018",
    )
    copy = pickle.loads(pickle.dumps(scenario))  # noqa: S301 - our own

    assert scenario == copy
    assert RUNTIMES[runtime] is copy.setup.runtime
    assert layout(scenario.setup.topology) == layout(copy.setup.topology)


def test_faults_cross_to_another_process_one_by_one():
    """As they came."""
    error = ScenarioError(["one", "two"])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own

    assert ("one", "two") == copy.problems
    assert (type(error), str(error)) == (type(copy), str(copy))
    assert ("one",) == InputError("one").problems


keys = st.sampled_from(
    [
        "title",
        "topology",
        "workload",
        "runtime",
        "calibration",
        "strategies",
        "repeat",
        "topology_overrides",
        "link_factors",
        "x",
        '"links.qpi.bandwidth"',
        "bandwidth",
        "nic",
        "fabric",
    ]
)
values = st.sampled_from(
    [
        '"full:2"',
        '"dgx1v"',
        '"dgx1vx2"',
        '"bytes:64"',
        '"resnet50"',
        '"ideal"',
        '"nominal"',
        '["all"]',
        '["ring", "x"]',
        "[[]]",
        "3",
        "true",
        "1.5",
        "nan",
        "{}",
        '{bandwidth = "1 GB/s"}',
        "{nic = []}",
        '{"links.qpi.bandwidth" = 1}',
        "{latency = {}}",
        '"."',
        '".."',
        '"a\\u0000.csv"',
        '"mine.toml"',
        '""',
        "1979-05-27",
        "0x" + "f" * 5000,
        "1" + "0" * 5000,
        '"' + "x" * 3000 + '"',
    ]
)
lines = st.one_of(
    st.tuples(keys, values).map(" = ".join), keys.map("[{}]".format), st.text(max_size=8)
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.lists(lines, max_size=5).map(lambda t: "\n".join(t).encode("utf-8", "replace")),
        st.lists(st.tuples(keys, values).map(" = ".join), max_size=4).map(
            lambda t: (SMALL + "\n".join(t)).encode()
        ),
        st.lists(values, min_size=4, max_size=4).map(
            lambda v: (
                f"topology = {v[0]}\nworkload = {v[1]}\nruntime = {v[2]}\n"
                f"topology_overrides = {v[3]}"
            ).encode()
        ),
    )
)
@example(content=b'topology = "mine.toml"\nworkload = "mine.toml"\ncalibration = "mine.toml"')
def test_any_file_is_a_scenario_or_a_scenario_error(write, content):
    """Whatever bytes it holds."""
    problems: tuple[str, ...] = ()
    try:
        scenario = load_scenario(write(content))
    except ScenarioError as error:
        problems = error.problems
    else:
        assert 1 <= scenario.repeat <= 1000
        assert scenario.strategies is None or scenario.strategies

    assert all(problem.startswith("mine.toml: ") for problem in problems)


@given(st.text(max_size=30))
@example("\ud800.toml")
@example("\ud800")
def test_any_text_names_a_scenario_or_is_a_scenario_error(text):
    """Whatever a user types."""
    try:
        name = load_scenario(text).name
    except ScenarioError as error:
        name = str(error)

    assert name


def test_what_nccl_is_told_stands_in_a_table(tmp_path):
    """`[nccl]` has NCCL's own variables; a tuner's file is looked for beside the scenario."""
    (tmp_path / "rules.csv").write_text("allreduce,0,4294967295,ring,simple,4,-1,-1\n")
    file = tmp_path / "a.toml"
    text = 'topology = "dgx1v"\nworkload = "bytes:1MiB"\n[nccl]\n'
    file.write_text(f'{text}version = "2.18"\nNCCL_ALGO = "^Tree"\ntuner = "rules.csv"\n')
    found = load_scenario(str(file)).setup.nccl

    assert (found.version, [rule.algorithm for rule in found.tuner if rule.algorithm]) == (
        (2, 18), ["ring"]
    )  # fmt: skip
    assert not allows(found.algorithms, "all_reduce", "tree")
    file.write_text(f"{text}NCCL_ALG = 'Ring'\nNCCL_PROTO = 'fast'\n")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(str(file))
    assert [problem.partition(": ")[2].partition(": ")[0] for problem in caught.value.problems] == [
        "nccl.NCCL_ALG",
        "nccl.NCCL_PROTO",
    ]


def test_settings_that_leave_nccl_nothing_are_a_fault_of_their_table(tmp_path):
    """Unless others than NCCL reduce too."""
    path, text = tmp_path / "none.toml", 'topology = "dgx-h100"\nworkload = "trivial"\n'
    told = '[nccl]\nNCCL_ALGO = "^ring,tree,nvls,nvlstree,pat,collnetdirect,collnetchain"\n'
    path.write_text(f'{text}strategies = ["nccl"]\n{told}')

    with pytest.raises(ScenarioError) as error:
        load_scenario(str(path))
    words = "NCCL_ALGO and NCCL_PROTO leave no algorithm on dgx-h100"
    assert [f"{path}: nccl: {words}"] == [*error.value.problems]
    path.write_text(f'{text}strategies = ["nccl", "ring"]\n{told}')
    assert load_scenario(str(path))
