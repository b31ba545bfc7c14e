"""`simreduce trace` and `simreduce explain` as a user meets them."""

from __future__ import annotations

import gzip
import json

import pytest

from simreduce.study.scenario_files import is_scenario

SCENARIO = (
    'topology = "full:4"\nworkload = "bytes:64K"\nstrategies = ["ring", '
    '"reduce_to_one"]\nruntime = "ideal"\n'
)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "question.toml").write_text(SCENARIO)
    (tmp_path / "machine.toml").write_text('extends = "dgx1v"\n')
    (tmp_path / "broken.toml").write_text("=")


def test_a_trace_of_a_topology(simreduce, tmp_path):
    done = simreduce("trace", "dgx1v", "--algo", "xring", "-b", "1M", "-o", "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    bench = simreduce("bench", "dgx1v", "--algo", "xring", "-b", "1M", "--json")
    time = json.loads(bench.out)["rows"][0]["time_us"]

    assert (0, "") == (done.status, done.err)
    assert done.out.startswith("t.json: xring on dgx1v, ")
    assert document["otherData"]["time_us"] == time
    assert max(e["ts"] for e in document["traceEvents"] if e["ph"] == "E") == time


def test_a_trace_of_a_scenario_takes_what_run_recommends(simreduce, tmp_path):
    done = simreduce("trace", "question.toml", "--workers", "1")
    ranking = json.loads(simreduce("run", "question.toml", "--workers", "1", "--json").out)
    about = json.loads((tmp_path / "trace.json").read_text())["otherData"]

    assert done.err == f"{ranking['recommended']}: recommended for question\n"
    assert about["strategy"] == ranking["recommended"]
    assert about["time_us"] == ranking["candidates"][0]["time_us"]


def test_a_compressed_trace_and_one_on_stdout_are_the_same(simreduce, tmp_path):
    simreduce("trace", "question.toml", "--algo", "ring", "-o", "t.json.gz")
    first = (tmp_path / "t.json.gz").read_bytes()
    simreduce("trace", "question.toml", "--algo", "ring", "-o", "t.json.gz")
    printed = simreduce("trace", "question.toml", "--algo", "ring", "-o", "-").out

    assert gzip.decompress(first).decode() == printed
    assert first == (tmp_path / "t.json.gz").read_bytes()
    assert json.loads(printed)["otherData"]["workload"] == "bytes:64K"


def test_an_explanation(simreduce):
    done = simreduce("explain", "dgx1v", "--algo", "xring", "-b", "1M")

    assert (0, "") == (done.status, done.err)
    for words in (
        "How long does it take?",
        "No run of this plan takes less than",
        "by any algorithm",
        "The critical path of xring",
        "lane wait",
        "The busiest links",
        "The busiest lanes",
        "nvlink2 links",
    ):
        assert words in done.out


def test_the_document_of_an_explanation(simreduce):
    document = json.loads(simreduce("explain", "question.toml", "--algo", "ring", "--json").out)

    assert list(document) == [
        "command",
        "version",
        "schema",
        "question",
        "strategy",
        "collective",
        "workload",
        "size_bytes",
        "ranks",
        "repeat",
        "equal_paths",
        "nccl_settings",
        "disturbance",
        "topology",
        "topology_digest",
        "runtime",
        "calibration",
        "time_us",
        "floor_us",
        "floors",
        "critical_path",
        "links",
        "lanes",
        "changes",
        "complete",
    ]
    causes = document["critical_path"]["causes"]
    assert sum(cause["share"] for cause in causes) == pytest.approx(1.0, rel=1e-12)
    assert sum(cause["time_us"] for cause in causes) == pytest.approx(
        document["time_us"], rel=1e-12
    )
    assert {"cause", "where", "meanwhile", "at", "time_us", "share"} == set(causes[0])
    assert {"sort", "resource", "figure", "change", "time_us", "saving_us", "saving_share"} == set(
        document["changes"][0]
    )
    for change in document["changes"]:
        assert change["time_us"] + change["saving_us"] == pytest.approx(
            document["time_us"], rel=1e-12
        )


@pytest.mark.parametrize(
    ("collective", "algo"),
    [("reduce_scatter", "ring"), ("all_gather", "ring"), ("broadcast", "chain")],
)
def test_other_collectives(simreduce, collective, algo):
    done = simreduce(
        "explain", "full:4", "--algo", algo, "--collective", collective, "-b", "64K", "--json"
    )

    assert done.status == 0
    assert json.loads(done.out)["collective"] == collective


def test_a_plan_that_takes_no_time(simreduce):
    done = simreduce("explain", "full:1", "-b", "64", "--runtime", "ideal")

    assert (0, "") == (done.status, done.err)


BAD = {
    "faults of all options at once": (
        ["trace", "dgx9v", "--algo", "rng", "-b", "x", "--runtime", "idle", "-o", "none/t.json"],
        [
            "none/t.json: cannot be written",
            "no topology 'dgx9v'",
            "-b: 'x' is not a size",
            "invalid alg rng",
            "unknown runtime 'idle'",
        ],
    ),
    "options that a scenario has itself": (
        ["explain", "question.toml", "-b", "4M", "-g", "2", "--algo", "rng"],
        ["-b: question.toml is a scenario", "-g: question.toml is a scenario", "invalid alg rng"],
    ),
    "a misspelt scenario": (
        ["explain", "dgx1v-resnet"],
        ["no scenario or topology 'dgx1v-resnet' (did you mean 'dgx1v-resnet50'?)"],
    ),
    "every strategy at once": (
        ["explain", "full:4", "--algo", "all"],
        ["--algo all: one strategy at a time"],
    ),
    "a pair without a route": (["trace", "ring:4", "--algo", "copy_to_gpus"], ["no route from"]),
    "a file that is no TOML": (["trace", "broken.toml"], ["broken.toml: not valid TOML"]),
    "a file that is not there": (
        ["trace", "missing.toml"],
        ["missing.toml: there is no such file"],
    ),
    "less than an element": (
        ["explain", "full:4", "-b", "2"],
        ["-b 2: less than one element of float32"],
    ),
    "a rank that is not there": (
        ["explain", "full:4", "--collective", "reduce", "--algo", "chain", "-r", "4"],
        ["-r 4: the ranks are 0 to 3"],
    ),
}


@pytest.mark.parametrize(("arguments", "faults"), BAD.values(), ids=BAD)
def test_bad_input_is_told(simreduce, arguments, faults):
    done = simreduce(*arguments)

    assert done.status == 2
    assert done.out == ""
    for fault in faults:
        assert fault in done.err
    assert len(done.err.splitlines()) == len(faults)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("question.toml", True),
        ("machine.toml", False),
        ("broken.toml", False),
        ("dgx1v-resnet50", True),
        ("dgx1v", False),
        ("", False),
        ("a\0b", False),
    ],
)
def test_what_a_scenario_is(text, expected):
    assert expected == is_scenario(text)
