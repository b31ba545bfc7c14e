"""The Python API: names wherever objects are, and results that show themselves."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from types import ModuleType

import pytest

import simreduce as sr
from simreduce.errors import InputError, StrategyError
from simreduce.plan import PlanBuilder
from simreduce.report.ranking import RUN
from simreduce.topology import load_topology

PLAN = sr.compile("ring", "bytes:1MiB", "full:4")
SHORT = 160


def test_names_and_objects_mean_the_same():
    machine, gradients = sr.load_topology("full:4"), sr.load_workload("bytes:1MiB")
    shape = sr.layout(machine)
    fitted = sr.load_calibration("dgx1p-tf2018")
    one = sr.simulate(PLAN, "full:4", runtime="ideal", calibration="dgx1p-tf2018")

    assert sr.layout("full:4") == shape
    assert PLAN.digest == sr.compile("ring", gradients, machine).digest
    assert PLAN.digest == sr.compile("ring", gradients, shape).digest
    assert one.to_json() == sr.simulate(PLAN, machine, "ideal", fitted).to_json()
    assert one.to_json() == sr.record(PLAN, machine, "ideal", fitted).result.to_json()
    assert 4 == sr.fold("switch:4").machines


def test_a_prediction_as_json_types_is_in_microseconds_and_bytes():
    """As its frame and the documents of commands are, and not in the seconds of a result."""
    found = sr.simulate(PLAN, "full:4", "ideal")
    document = found.to_dict()

    assert found.seconds == pytest.approx(document["time_us"] / 1e6)
    assert found.floors.hardware == pytest.approx(document["floor_us"] / 1e6)
    assert 0 < document["floor_us"] <= document["time_us"]
    assert [use.nbytes for use in found.links] == [use["bytes"] for use in document["links"]]


def test_other_collectives_are_compiled_too():
    plan = sr.compile("direct", "bytes:1MiB", "full:4", "reduce", root=3)

    assert "reduce" == plan.contract.collective
    assert not sr.verify(plan)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("simulate", (PLAN, 8), "expected a Topology or the name of one, got int 8"),
        ("simulate", ("ring", "full:4"), "expected a Plan, as compile makes it, got str 'ring'"),
        (
            "simulate",
            (PLAN, "full:4", 1),
            "expected a Runtime or one of tensorflow, nccl, ideal, got int",
        ),
        ("record", (PLAN, "full:4", "ideal", 0.5), "expected a Calibration or the name of one"),
        ("compile", (PLAN, "bytes:4", "full:4"), "expected a strategy's text, got Plan"),
        ("compile", ("ring", 4, "full:4"), "expected a Workload or the name of one, got int 4"),
        ("compile", ("ring", "bytes:4", None), "expected a Topology or the name of one"),
        ("layout", (PLAN,), "expected a Topology or the name of one, got Plan"),
        ("fold", (8,), "expected a Topology or the name of one, got int 8"),
        ("verify", ([PLAN],), "expected a Plan, as compile makes it, got list"),
        ("repeat", ("ring", 2), "expected a Plan, as compile makes it, got str 'ring'"),
        ("load_topology", (4,), "expected the name of a machine, got int 4"),
        ("load_workload", (4,), "expected the name of a workload, got int 4"),
        ("load_calibration", (None,), "expected the name of a calibration, got NoneType None"),
        ("load_scenario", ({},), "expected the name of a scenario, got dict {}"),
        ("rank", (3,), "expected a Scenario or the name of one, got int 3"),
        ("rank", (3, "bytes:4"), "expected a Topology or the name of one, got int 3"),
        ("step", (PLAN,), "expected a Scenario or the name of one, got Plan"),
        ("bench", ("full:4", [3]), "expected a strategy's text, got int 3"),
    ],
)
def test_a_wrong_kind_of_argument_says_what_was_meant(function, arguments, message):
    with pytest.raises(TypeError) as caught:
        getattr(sr, function)(*arguments)

    assert message in str(caught.value)
    assert len(str(caught.value)) <= SHORT


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: sr.bench("full:4", root=9), InputError, "root: all_reduce has no root, got 9"),
        (lambda: sr.bench("full:4", root="x"), TypeError, "root: expected a whole number"),
        (lambda: sr.bench("full:4", sizes=0), InputError, "sizes: must be between 4 bytes"),
        (lambda: sr.bench("full:4", sizes=-1), InputError, "sizes: must be between 4 bytes"),
        (lambda: sr.bench("full:4", sizes=[]), InputError, "sizes: name at least one"),
        (lambda: sr.bench("full:4", sizes=[1.5]), TypeError, "sizes: expected bytes"),
        (lambda: sr.bench("full:4", sizes=None), TypeError, "sizes: expected bytes"),
        (lambda: sr.bench("full:4", sizes="1Q"), InputError, "sizes: '1Q' is not a size"),
        (lambda: sr.bench("full:4", []), InputError, "strategies: name at least one"),
        (
            lambda: sr.bench("full:4", collective="allreduce"),
            InputError,
            "collective: unknown 'allreduce' (did you mean 'all_reduce'?)",
        ),
        (lambda: sr.bench("full:4", dtype=float), TypeError, "expected the name of a dtype"),
        (lambda: sr.bench("full:4", faithful="x"), TypeError, "faithful: expected True or False"),
        (lambda: sr.rank("full:4", "bytes:4", []), InputError, "strategies: name at least one"),
        (lambda: sr.rank("full:4", "bytes:4", repeat=0), InputError, "repeat: must be at least 1"),
        (lambda: sr.rank("full:4", "bytes:4", repeat="x"), TypeError, "repeat: expected a whole"),
        (lambda: sr.rank("full:4", "bytes:4", workers=0), InputError, "workers: must be at least"),
        (lambda: sr.repeat(PLAN, "x"), TypeError, "times: expected a whole number, got str 'x'"),
        (lambda: sr.simulate(PLAN, "full:4", ready="x"), TypeError, "ready: expected seconds"),
        (lambda: sr.Disturbance(slow=3), TypeError, "slow: expected factors by device"),
        (lambda: sr.Disturbance(jitter="x"), TypeError, "jitter: expected a number, got str 'x'"),
        (lambda: sr.Fault("a", "b", "c"), TypeError, "time: expected a number, got str 'a'"),
        (lambda: sr.wrong_elements(3), TypeError, "expected the list that verify returns, got 3"),
        (lambda: sr.step("dgx1v-resnet50", batch="x"), TypeError, "batch: expected a whole"),
        (lambda: sr.step("dgx1v-resnet50", batch=0), InputError, "batch: must be at least 1"),
        (lambda: sr.fold("switch:4", 0), InputError, "machines: must be at least 2, got 0"),
        (lambda: sr.fold("switch:4", "8"), TypeError, "machines: expected a whole number, got str"),
        (
            lambda: sr.load_scenario("dgx1v-resnet50", strategies=["rign"]),
            InputError,
            "strategies: strategy (rign) contains invalid alg rign (did you mean 'ring'?)",
        ),
        (
            lambda: sr.load_scenario("dgx1v-resnet50", runtime="idel", repeat=0),
            InputError,
            "repeat: must be a whole number from 1 to 1000, got 0\nruntime: unknown runtime 'idel'",
        ),
        (lambda: sr.bnech, AttributeError, "(did you mean 'bench'?)"),
    ],
)
def test_a_wrong_argument_is_named(call, kind, message):
    """TypeError for a wrong kind, InputError for a wrong value."""
    with pytest.raises(kind) as caught:
        call()

    assert message in str(caught.value)


def test_sizes_are_those_of_the_command_line():
    rows = sr.bench("full:4", sizes=["1M", "2MiB", 4096]).rows

    assert [1 << 20, 2 << 20, 4096] == [row.nbytes for row in rows]


def test_unknown_names_are_bad_input():
    with pytest.raises(InputError, match="did you mean 'dgx1v'"):
        sr.simulate(PLAN, "dgx1w")
    with pytest.raises(StrategyError, match="did you mean 'ring'"):
        sr.rank("full:4", "bytes:1MiB", ["rign"])


def test_a_ranking_of_a_workload_is_that_of_its_scenario(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'topology = "full:4"\nworkload = "bytes:1MiB"\nstrategies = ["ring", "direct"]\n', "utf-8"
    )
    ours = sr.rank("full:4", "bytes:1MiB", ["ring", "direct"], runtime="ideal")
    theirs = sr.rank(str(file), runtime="ideal")

    assert (
        ours.candidates
        == theirs.candidates
        == sr.rank(sr.load_scenario(file), runtime="ideal").candidates
    )
    assert "ideal" == theirs.scenario.setup.runtime.name
    assert RUN.write(ours) == ours.to_dict()


def test_a_step_of_a_scenario(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'topology = "full:2"\nworkload = "alexnet"\nruntime = "ideal"\nstrategies = ["ring"]\n'
        '[step]\nbatch = 4\ntime = "5 ms"\n',
        "utf-8",
    )
    ranking = sr.step(file)

    assert 2 * ranking.to_dict()["batch"] == sr.step(file, batch=8).to_dict()["batch"]
    with pytest.raises(TypeError, match="batch is for a scenario that is named"):
        sr.step(sr.load_scenario(file), batch=8)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    scenario = tmp_path_factory.mktemp("results") / "step.toml"
    scenario.write_text(
        'topology = "dgx1p"\nworkload = "alexnet"\nruntime = "tensorflow"\n'
        'calibration = "dgx1p-tf2018"\nstrategies = ["nccl", "copy_to_gpus"]\n'
        '[step]\nbatch = 64\ntime = "60 ms"\n',
        "utf-8",
    )
    slow = sr.Disturbance(slow={"gpu1": 2.0})
    return {
        "simulate": sr.simulate(PLAN, "full:4", "ideal"),
        "rank": sr.rank(
            "full:4", "bytes:1MiB", ["ring", "nccl+packs=1", "nccl+bucket=0"], disturbance=slow
        ),
        "bench": sr.bench("full:4", ["ring", "direct"], [1024, "1MiB"], runtime="ideal"),
        "step": sr.step(scenario),
    }


@pytest.mark.parametrize("name", ["simulate", "rank", "bench", "step"])
def test_results_show_themselves(results, name):
    """Briefly as text, as a table in a notebook, as JSON types; they go to other processes."""
    result = results[name]
    copy = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own

    assert result.headline in repr(result)
    assert len(repr(result)) <= SHORT
    assert result._repr_html_().endswith("</table>")
    assert all("<svg" in svg for _, svg in result.pictures())
    assert result.to_dict() == json.loads(json.dumps(result.to_dict()))
    assert result.records()
    assert copy.to_dict() == result.to_dict()


@pytest.mark.parametrize("name", ["simulate", "rank", "bench", "step"])
def test_results_plot_themselves(results, name):
    assert "<svg" in results[name].plot().svg()


@pytest.mark.parametrize("name", ["simulate", "rank", "bench", "step"])
def test_plots_name_the_calibration(results, name):
    """In the subtitle, with the runtime."""
    runtime = {"simulate": "ideal", "bench": "ideal"}.get(name, "tensorflow")
    calibration = "dgx1p-tf2018" if name == "step" else "nominal"

    assert f">runtime {runtime}, calibration {calibration}</text>" in results[name].plot().svg()


def test_the_documents_are_those_of_the_commands(results):
    sizes = ("-b", "1024", "-e", "1M", "-f", "1024")
    command = ("bench", "full:4", "--algo", "ring,direct", *sizes, "--runtime", "ideal", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", *command], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == results["bench"].to_dict()


def test_other_names_of_a_plan_are_in_its_row(results):
    (row,) = [row for row in results["rank"].records() if row["also"]]

    assert ("nccl+bucket=0", ["nccl+packs=1"]) == (
        row["strategy"],
        [o["strategy"] for o in row["also"]],
    )


@pytest.mark.parametrize(("library", "hidden"), [("pandas", []), ("polars", ["pandas"])])
def test_frames_are_made_by_what_is_installed(results, monkeypatch, library, hidden):
    """pandas if it is there, else polars."""
    fake = ModuleType(library)
    fake.DataFrame = lambda rows, **_: (library, rows)
    monkeypatch.setitem(sys.modules, library, fake)
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)

    assert (library, results["bench"].records()) == results["bench"].to_frame()


def test_without_either_the_error_names_what_to_install(results, monkeypatch):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(
        ImportError, match="to_frame needs one of pandas, polars: pip install pandas"
    ):
        results["rank"].to_frame()


def test_values_have_a_repr_of_one_line():
    plan, setup = sr.compile("ring", "resnet50", "dgx1v"), sr.Setup("dgx1v", "ideal")
    short = sr.compile("ring", "bytes:1MiB", "full:2")
    for value, text in (
        (plan, "<Plan of all_reduce: 30912 ops, 9 devices>"),
        (sr.load_workload("resnet50"), "<Workload resnet50: 161 gradients, 102.2 MB>"),
        (sr.load_scenario("dgx1v-resnet50"), "<Scenario dgx1v-resnet50: resnet50 on dgx1v>"),
        (setup, "<Setup: dgx1v, ideal, nominal>"),
        (setup.but(part=setup.layout.subset(2)), "<Setup: 2 GPUs of dgx1v, ideal, nominal>"),
        (sr.record(short, "full:2"), "<Recording: "),
        (sr.record(short, "full:2").result, "<Result: "),
        (sr.simulate(short, "full:2"), "<Prediction: "),
    ):
        assert repr(value).startswith(text)
        assert len(repr(value)) <= SHORT
        assert "\n" not in repr(value)


def test_only_public_names_are_listed():
    assert {*sr.__all__, "__version__"} == set(dir(sr))
    assert sr.Topology is type(load_topology("full:2"))
    assert PlanBuilder.__name__ not in dir(sr)


def test_what_is_given_with_a_scenario_replaces_what_it_says(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('topology = "ring:4"\nworkload = "bytes:1KiB"\nstrategies = ["direct"]\n')

    once = sr.rank(str(file), strategies=["ring"], runtime="ideal")
    twice = sr.rank(str(file), strategies="ring", runtime="ideal", repeat=2)

    assert ["ring"] == [c.strategy.text for c in once.candidates]
    assert once.recommended.seconds == pytest.approx(twice.recommended.seconds)
    with pytest.raises(ValueError, match="no such"):
        sr.rank(str(file), strategies=["no such"])
