"""`--algo A,B`, which all commands take alike."""

from __future__ import annotations

import json

import pytest


def test_bench_takes_strategies_with_commas_between(simreduce):
    """And in several options, in their order."""
    done = simreduce(
        "bench",
        "full:4",
        "-b",
        "4K",
        "--json",
        "--algo",
        "ring+small=4K,10,direct",
        "--algo",
        "one_shot",
    )

    assert (0, "") == (done.status, done.err)
    assert ["ring+small=4K,10", "direct", "one_shot"] == [
        row["algorithm"] for row in json.loads(done.out)["rows"]
    ]


def test_verify_takes_strategies_with_commas_between(simreduce):
    """Each is proved by itself."""
    done = simreduce("verify", "-g", "3", "--algo", "ring+repack=2,fp16,direct", "--count", "7")

    assert (0, "") == (done.status, done.err)
    assert ["ring+repack=2,fp16: 1 plan", "direct: 1 plan"] == done.out.splitlines()[:2]


@pytest.mark.parametrize("command", ["run", "step"])
def test_a_scenario_is_asked_about_other_strategies_than_its_own(simreduce, tmp_path, command):
    """Which it need not have."""
    (tmp_path / "s.toml").write_text(
        'topology = "full:4"\nworkload = "bytes:64K"\nstrategies = ["ring"]\n[step]\nbatch '
        '= 1\ntime = "1 ms"\n'
    )
    done = simreduce(command, tmp_path / "s.toml", "--algo", "one_shot,direct", "--json")
    candidates = json.loads(done.out)["candidates"]

    assert (0, "") == (done.status, done.err)
    assert {"one_shot", "direct"} == {each["strategy"] for each in candidates}


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (
            ("bench", "full:4", "--algo", "ring,drect,rng"),
            [
                "strategy (drect) contains invalid alg drect (did you mean 'direct'?)",
                "strategy (rng) contains invalid alg rng (did you mean 'ring'?)",
            ],
        ),
        (
            ("bench", "full:4", "--algo", "xring#9,xring#8"),
            [
                (
                    "xring#9, xring#8: the number of sub-chunks must be from 1 to the GPUs per "
                    "task, 4 here"
                ),
            ],
        ),
        (
            ("bench", "ring:4", "--algo", "copy_to_gpus,xring#9"),
            [
                (
                    "copy_to_gpus: no route from 'gpu0' to 'gpu2': no switch or host joins "
                    "them, and GPUs do not forward traffic for others"
                ),
                "xring#9: the number of sub-chunks must be from 1 to the GPUs per task, 4 here",
            ],
        ),
        (
            ("explain", "full:4", "--algo", "ring,direct"),
            ["--algo ring,direct: one strategy at a time"],
        ),
        (("trace", "full:4", "--algo", "all"), ["--algo all: one strategy at a time"]),
        (("verify", "--algo", "ring,all"), ["--algo all: --all proves everything"]),
        (("explain", "full:4", "--algo", "ring,"), ["--algo: an empty strategy in 'ring,'"]),
        (("explain", "full:4", "--algo", ""), ["--algo: an empty strategy in ''"]),
        (
            ("bench", "full:4", "--algo", "ring, ,drect", "--algo", ",ring"),
            [
                "--algo: an empty strategy in 'ring, ,drect'",
                "--algo: an empty strategy in ',ring'",
                "--algo: ring stands there 2 times",
                "strategy (drect) contains invalid alg drect (did you mean 'direct'?)",
            ],
        ),
    ],
)
def test_faults_of_strategies_are_told_together(simreduce, arguments, faults):
    """Of all that were named."""
    status, out, err = simreduce(*arguments)

    assert (2, "") == (status, out)
    assert [f"simreduce: {fault}" for fault in faults] == err.splitlines()


@pytest.mark.parametrize(
    "command", ["bench full:4", "validate full:4", "run s.toml", "step s.toml", "verify"]
)
@pytest.mark.parametrize(
    ("algo", "faults"),
    [
        ("ring,direct,ring", ["--algo: ring stands there 2 times"]),
        ("ring,", ["--algo: an empty strategy in 'ring,'"]),
        ("", ["--algo: an empty strategy in ''"]),
        ("all,ring,all", ['--algo: "all" stands alone', "--algo: all stands there 2 times"]),
    ],
)
def test_lists_of_strategies_have_one_rule_in_all_commands(
    simreduce, tmp_path, monkeypatch, command, algo, faults
):
    """`verify`, which has an option for all, says so instead."""
    (tmp_path / "s.toml").write_text(
        'topology = "full:4"\nworkload = "bytes:64K"\n[step]\nbatch = 1\ntime = "1 ms"\n'
    )
    monkeypatch.chdir(tmp_path)
    status, out, err = simreduce(*command.split(), "--algo", algo)
    if command == "verify" and "all" in algo:
        faults = ["--algo all: --all proves everything"]

    assert (2, "") == (status, out)
    assert [f"simreduce: {fault}" for fault in faults] == err.splitlines()
