"""Algorithms from outside the package: registered by a decorator, found by an entry point."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simreduce as sr
from simreduce.errors import StrategyError
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "my_algorithm.py"


@pytest.fixture
def fresh(monkeypatch):
    """Catalogues that are as before when the test ends."""
    for catalogue in COLLECTIVES.values():
        before = dict(catalogue)
        monkeypatch.setattr(catalogue, "_before", before, raising=False)
    yield
    for catalogue in COLLECTIVES.values():
        for name in catalogue.keys() - catalogue._before.keys():
            del catalogue[name]


def star(builder, layout, tensors, options):  # noqa: ARG001 - a planner's signature
    sums = [builder.add([t[0], *(builder.copy(v, 0) for v in t[1:])]) for t in tensors]
    ranks = range(len(layout))
    return [[builder.copy(total, r) if r else total for r in ranks] for total in sums]


def broken(builder, layout, tensors, options):  # noqa: ARG001
    return [list(tensor) for tensor in tensors]


@pytest.mark.usefixtures("fresh")
def test_a_registered_planner_is_an_algorithm_like_any_other():
    planner = sr.algorithm("own_nothing", "does nothing", shards="ignored")(broken)
    plan = sr.compile("own_nothing#3+packs=2", "resnet50", "full:2")

    assert planner is broken
    assert "does nothing" == ALGORITHMS["own_nothing"].summary
    assert sr.verify(plan)


@pytest.mark.usefixtures("fresh")
def test_a_planner_may_be_registered_again():
    """A notebook runs its cells again; another planner may not take the name."""
    sr.algorithm("own_star", "first")(star)
    sr.algorithm("own_star", "second")(star)

    assert "second" == ALGORITHMS["own_star"].summary
    with pytest.raises(StrategyError, match="own_star: there is an algorithm of that name: second"):
        sr.algorithm("own_star", "third")(broken)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ring", "ring: there is an algorithm of that name: "),
        ("ring/ring", "'ring/ring' is no name for an algorithm"),
        ("my ring", "'my ring' is no name for an algorithm"),
        ("all", "'all' is no name for an algorithm"),
    ],
)
def test_names_that_are_taken_or_cannot_be_typed_are_refused(name, message):
    with pytest.raises(StrategyError, match=message):
        sr.algorithm(name, "mine")(star)


@pytest.mark.usefixtures("fresh")
def test_a_wrong_signature_is_a_type_error():
    with pytest.raises(
        TypeError, match=r"own: a planner takes \(builder, layout, tensors, options\)"
    ):
        sr.algorithm("own", "mine")(lambda _builder, _layout: [])
    with pytest.raises(StrategyError, match="unknown collective 'all_redcue'"):
        sr.algorithm("own", "mine", collective="all_redcue")(star)
    assert "own" not in ALGORITHMS


@pytest.mark.usefixtures("fresh")
def test_other_collectives_too():
    @sr.algorithm("own_broadcast", "one copy each", collective="broadcast")
    def planner(builder, layout, tensors, options):  # noqa: ARG001
        return [[builder.copy(tensor[0], r) for r in range(len(tensor))] for tensor in tensors]

    assert not sr.verify(sr.compile("own_broadcast", "bytes:4K", "full:3", "broadcast"))


@pytest.fixture
def simreduce_with_mine(tmp_path):
    """The command line with the example installed as a package."""
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", "utf-8")
    (package / "entry_points.txt").write_text(
        "[simreduce.algorithms]\nmine = my_algorithm\n", "utf-8"
    )
    paths = [str(tmp_path), str(EXAMPLE.parent), *sys.path]

    def run(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "simreduce", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert status == done.returncode, done.stderr
        run.errors = done.stderr
        return done.stdout

    run.packages, run.path = tmp_path, os.pathsep.join(paths)
    return run


@pytest.mark.slow
def test_commands_know_an_entry_point(simreduce_with_mine):
    """`verify`, `bench` and `run`, this one in processes of its own."""
    proved = json.loads(simreduce_with_mine("verify", "--algo", "mine", "-g", "4", "--json"))
    rows = json.loads(simreduce_with_mine("bench", "switch:4", "--algo", "mine", "--json"))["rows"]
    ranking = simreduce_with_mine(
        "run", "dgx-h100-gpt2-ddp", "--algo", "mine,ring", "--workers", "2", "--json"
    )

    assert (True, []) == (proved["checked"] > 0, proved["problems"])
    assert [("mine", 0)] == [(row["algorithm"], row["wrong"]) for row in rows]
    assert {"mine", "ring"} == {c["strategy"] for c in json.loads(ranking)["candidates"]}


@pytest.mark.slow
def test_a_plugin_that_cannot_be_imported_says_why_where_it_matters(simreduce_with_mine):
    """One line where its name is used or algorithms are listed, and none elsewhere: commands go on
    without it.
    """
    entries = simreduce_with_mine.packages / "mine-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[simreduce.algorithms]\nbimp = no_such_module\n", "utf-8")
    why = "bimp: no_such_module cannot be imported: ModuleNotFoundError: No module named "
    why += "'no_such_module'"

    def lines(algo: str, status: int) -> list[str]:
        out = simreduce_with_mine("bench", "full:2", "-b", "1K", "--algo", algo, status=status)
        assert bool(out) == (status == 0)
        return [line for line in simreduce_with_mine.errors.splitlines() if "bimp" in line]

    assert [] == lines("ring", 0)
    assert [f"simreduce: strategy (bimp) contains invalid alg {why}"] == lines("bimp", 2)
    assert [f"simreduce:0: UserWarning: algorithm {why}"] == lines("all", 0)


def test_a_plugin_may_be_imported_before_simreduce(simreduce_with_mine):
    """Its import loads simreduce, which finds it half done among the entry points."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import my_algorithm, simreduce.app.cli"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": simreduce_with_mine.path},
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_a_plugin_that_exits_is_one_line(simreduce_with_mine):
    entries = simreduce_with_mine.packages / "mine-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[simreduce.algorithms]\nquits = quits\n", "utf-8")
    code = "import sys\nsys.exit('no licence')\n"
    (simreduce_with_mine.packages / "quits.py").write_text(code, "utf-8")

    simreduce_with_mine("bench", "full:2", "-b", "1K", "--algo", "quits", status=2)
    assert simreduce_with_mine.errors == (
        "simreduce: strategy (quits) contains invalid alg quits: quits cannot be imported: "
        "SystemExit: no licence\n"
    )
    code = (
        "import sys\nimport simreduce as sr\n@sr.algorithm('quits', 'exits')\n"
        "def quits(builder, layout, tensors, options):\n    sys.exit(0)\n"
    )
    (simreduce_with_mine.packages / "quits.py").write_text(code, "utf-8")
    simreduce_with_mine("bench", "full:2", "-b", "1K", "--algo", "quits", status=2)
    assert simreduce_with_mine.errors == ("simreduce: quits: raised SystemExit: 0 (quits.py:5)\n")


def raises(builder, layout, tensors, options):  # noqa: ARG001
    return {}["x"]


def nothing(builder, layout, tensors, options):  # noqa: ARG001
    return None


def far(builder, layout, tensors, options):  # noqa: ARG001
    return [[builder.copy(tensor[0], 99) for _ in tensor] for tensor in tensors]


def too_few(builder, layout, tensors, options):  # noqa: ARG001
    return [list(tensor) for tensor in tensors][1:]


def a_rank_short(builder, layout, tensors, options):  # noqa: ARG001
    return [list(tensor)[1:] for tensor in tensors]


def numbers(builder, layout, tensors, options):  # noqa: ARG001
    return [[1] * len(tensor) for tensor in tensors]


def of_no_op(builder, layout, tensors, options):  # noqa: ARG001
    return [[value._replace(op=10**6) for value in tensor] for tensor in tensors]


FAULTY = {
    raises: r"raised KeyError: 'x' \((tests/)?test_plugins\.py:\d+\)",
    nothing: "must return one list of values per tensor, returned None",
    far: "made a faulty plan: COPY on device 99; the devices are 0 to 2",
    too_few: "must return one list of values per tensor: 1, returned 0",
    a_rank_short: "must return 2 values for tensor 0, one per rank, returned 1",
    numbers: "must return values of the builder, returned 1 in a list",
    of_no_op: "must return values of the builder, returned Value",
}


@pytest.mark.usefixtures("fresh")
def test_a_faulty_planner_is_refused_with_what_it_did():
    """Each by itself, and all of them in one ranking, which goes on with the others."""
    for planner, message in FAULTY.items():
        name = f"own_{planner.__name__}"
        sr.algorithm(name, "faulty", choices=lambda layout: layout.no_such_field)(planner)
        with pytest.raises(StrategyError, match=f"^{name}: {message}"):
            sr.compile(name, "bytes:4K", "full:2")
    ranking = sr.rank("full:2", "bytes:4K")
    refused = dict(ranking.refused)

    assert "one_shot" in [c.strategy.text for c in ranking.candidates]
    for planner, message in FAULTY.items():
        name = f"own_{planner.__name__}"
        assert re.match(f"{name}: {message}", refused[name])


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("<Prediction: ")
    assert "<Ranking: resnet50 on dgx1v: Run " in done.stdout
