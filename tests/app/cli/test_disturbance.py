"""`--jitter`, `--slow` and `--fault` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.thorough import slow

_BENCH = (
    "bench",
    "full:4,bandwidth=1GB/s,latency=0us",
    "-b",
    "4K",
    "--runtime",
    "ideal",
    "--algo",
    "ring",
)
_SCENARIO = (
    'topology = "full:4"\nworkload = "bytes:64K"\nstrategies = ["ring", '
    '"reduce_to_one"]\nruntime = "ideal"\n'
)


def time_us(done) -> float:
    return json.loads(done.out)["rows"][0]["time_us"]


def test_a_cut_that_is_mended_costs_the_time_it_lasted(simreduce):
    """Six steps of 1 KiB at 1 GB/s on every hop; hop gpu1>gpu2 rests for 10 us in the third, and
    all wait.
    """
    plain = simreduce(*_BENCH, "--json")
    cut = simreduce(
        *_BENCH, "--json", "--fault", "gpu1>gpu2@2.5us=0", "--fault", "gpu1>gpu2@12.5us=100%"
    )

    assert time_us(plain) == pytest.approx(6 * 1.024, rel=1e-12)
    assert time_us(cut) == pytest.approx(6 * 1.024 + 10, rel=1e-12)
    assert json.loads(plain.out)["disturbance"] == ""


def test_a_slow_device_slows_its_links(simreduce):
    done = simreduce(*_BENCH, "--json", "--slow", "gpu3=1.5")

    assert time_us(done) == pytest.approx(6 * 1.024 * 1.5, rel=1e-12)


def test_the_header_says_what_disturbs(simreduce):
    done = simreduce(
        *_BENCH,
        "--jitter",
        "0.1",
        "--seed",
        "7",
        "--slow",
        "gpu3=1.5",
        "--fault",
        "cable@1us=500MB/s",
    )

    assert (
        "# disturbed: gpu3 1.5 times as slow, jitter 0.1 (seed 7), cable at 0.5 GB/s from 1 us on"
        in done.out.splitlines()
    )
    assert (0, "") == (done.status, done.err)


def test_jitter_is_the_seeds(simreduce):
    bench = ("bench", "switch:8", "-b", "1K", "--json", "--jitter", "0.2")
    times = [time_us(simreduce(*bench, "--seed", seed)) for seed in ("1", "1", "2")]

    assert times[0] == times[1] != times[2]


def test_a_link_that_is_cut_for_ever_fails_those_that_need_it(simreduce):
    """The others are simulated all the same."""
    star = (*_BENCH[:-1], "ring,reduce_to_one")
    done, calm = simreduce(*star, "--fault", "gpu1>gpu2@1us=0"), simreduce(*star)
    (ring, one), (_, calm_one) = (
        [line for line in each.out.splitlines() if not line.startswith("#")]
        for each in (done, calm)
    )

    assert (1, "") == (done.status, done.err)
    assert "  ring failed: 32 ops can never finish: op 6 COPY gpu1 -> gpu2 " in ring
    assert ring.endswith(": no bandwidth on gpu1>gpu2 cable")
    assert one == calm_one


def test_every_fault_is_told_at_once_with_the_nearest_name(simreduce):
    options = [
        "--jitter",
        "3",
        "--slow",
        "gpu9=2",
        "--slow",
        "gpu1",
        "--slow",
        "gpu2=x",
        "--fault",
        "gpu0",
        "--fault",
        "gpu0>gpu9@1us=0",
    ]
    options += [
        "--fault",
        "gpu0@1=0",
        "--fault",
        "gpu0@1us=2GB",
        "--fault",
        "gpu0@1us=-5%",
        "--fault",
        "cabel@1us=0",
    ]
    done = simreduce(*_BENCH, *options)

    assert (2, "") == (done.status, done.out)
    machine = "full:4,bandwidth=1GB/s,latency=0us"
    assert done.err.splitlines() == [
        "simreduce: --slow gpu1: a device and a factor above 0, such as gpu3=1.5",
        "simreduce: --slow gpu2=x: a device and a factor above 0, such as gpu3=1.5",
        (
            "simreduce: --fault gpu0: needs LINK@TIME=BANDWIDTH, such as gpu0>gpu3@1ms=0 or "
            "gpu3@2ms=50%"
        ),
        "simreduce: --fault gpu0@1=0: '1' has no unit; write for example '1.5 us' or '700 ns'",
        (
            "simreduce: --fault gpu0@1us=2GB: '2GB': unknown unit 'GB' for a bandwidth; write "
            "for example '25 GB/s' or '200 Gbit/s'"
        ),
        (
            "simreduce: --fault gpu0@1us=-5%: '-5%' is not a share of a bandwidth, 0% or "
            "0.0001% to 100%; write for example 50%"
        ),
        "simreduce: --jitter 3: needs a part between 0 and 1",
        f"simreduce: {machine}: no device 'gpu9' (did you mean 'gpu3'?)",
        (
            f"simreduce: {machine}: no link, node or link class 'gpu0>gpu9' (did you mean "
            f"'gpu0>gpu3'?)"
        ),
        f"simreduce: {machine}: no link, node or link class 'cabel' (did you mean 'cable'?)",
    ]


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "question.toml").write_text(_SCENARIO)
    return "question.toml"


def test_explain_and_trace_look_at_the_disturbed_plan(simreduce, scenario, tmp_path):
    disturbed = (
        "--algo",
        "ring",
        "--slow",
        "gpu2=2",
        "--jitter",
        "0.1",
        "--fault",
        "gpu0@5us=0",
        "--fault",
        "gpu0@25us=100%",
    )
    document = json.loads(simreduce("explain", scenario, "--json", *disturbed).out)
    traced = simreduce("trace", scenario, "-o", "t.json", *disturbed)
    about = json.loads((tmp_path / "t.json").read_text())["otherData"]
    calm = json.loads(simreduce("explain", scenario, "--json", "--algo", "ring").out)

    assert (0, "") == (traced.status, traced.err)
    assert about["time_us"] == document["time_us"] > calm["time_us"] + 15
    assert about["disturbance"] == document["disturbance"] != calm["disturbance"] == ""
    causes = document["critical_path"]["causes"]
    assert sum(cause["time_us"] for cause in causes) == pytest.approx(
        document["time_us"], rel=1e-12
    )
    assert "# disturbed: gpu2 2 times as slow" in simreduce("explain", scenario, *disturbed).out


def test_run_ranks_what_is_left(simreduce, scenario):
    """The ring needs the link that is cut; reducing to gpu0 does not."""
    done = simreduce("run", scenario, "--workers", "1", "--fault", "gpu2>gpu3@0=0", "--details")
    slow = simreduce("run", scenario, "--workers", "2", "--json", "--slow", "gpu0=4")

    assert (0, "") == (done.status, done.err)
    assert "# disturbed    gpu2>gpu3 at 0 GB/s from 0 ns on" in done.out.splitlines()
    assert "  ring: " in done.out
    assert "ops can never finish" in done.out
    assert json.loads(slow.out)["disturbance"] == "gpu0 4 times as slow"


def test_run_on_a_machine_that_cuts_off_everything(simreduce, scenario):
    done = simreduce("run", scenario, "--workers", "1", "--fault", "cable@0=0")

    assert (1, "") == (done.status, done.out)
    assert "no bandwidth on" in done.err


@pytest.mark.parametrize("command", ["run", "explain", "trace"])
def test_every_command_tells_names_that_the_machine_lacks(simreduce, scenario, command):
    done = simreduce(command, scenario, "--runtime", "idael", "--slow", "gpu7=2")

    assert (2, "") == (done.status, done.out)
    assert "'ideal'" in done.err
    done = simreduce(command, scenario, "--slow", "gpu7=2")
    assert done.err == "simreduce: full:4: no device 'gpu7' (did you mean 'gpu3'?)\n"


ASKED = {
    "run": ["run", "asked.toml"],
    "step": ["step", "asked.toml"],
    "tune": ["tune", "asked.toml", "--target", "nccl", "--objective", "time"],
    "explain": ["explain", "asked.toml", "--algo", "nccl"],
    "bench": ["bench", "dgx1v", "--algo", "nccl", "-b", "1K"],
    "replicas": ["step", "replicas.toml"],
}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Scenarios of a machine with a slow link and another that is cut."""
    monkeypatch.chdir(tmp_path)
    factors = '[link_factors]\nqpi = 0.5\n"gpu0<>gpu4" = 0\n'
    (tmp_path / "asked.toml").write_text(
        'topology = "dgx1v"\nworkload = "alexnet"\nstrategies = ["nccl"]\n'
        f'{factors}[step]\nbatch = 1\nrate = "1 TFLOP/s"\n'
    )
    (tmp_path / "replicas.toml").write_text(
        f'topology = "dgx1v"\nworkload = "alexnet"\n{factors}[replicas]\n'
        'workers = ["gpu1", "gpu2"]\nservers = ["cpu0"]\ncompute = "1 s"\nupdates = 2\n'
    )


@pytest.mark.parametrize("name", ["run", "replicas", *slow(["step", "tune", "explain"])])
@pytest.mark.usefixtures("asked")
def test_links_that_a_scenario_slows_or_cuts_are_said(simreduce, name):
    """Above the answer and in its document."""
    text, document = simreduce(*ASKED[name]), simreduce(*ASKED[name], "--json")
    words = "bandwidth of qpi x 0.5, gpu0<>gpu4 x 0"

    assert (0, 0) == (text.status, document.status), text.err
    assert any(
        line.startswith("# disturbed") and line.endswith(f" {words}")
        for line in text.out.splitlines()
    )
    assert words == json.loads(document.out)["disturbance"]


@pytest.mark.parametrize(
    ("command", "part", "ranks"),
    [
        ("run", "node", 16),
        ("step", "n2", 16),
        pytest.param("tune", "node", 16, marks=pytest.mark.slow),
        pytest.param("explain", "node", 16, marks=pytest.mark.thorough),
        pytest.param("run", "spine", 24, marks=pytest.mark.slow),
        pytest.param("step", "n1.mlx5_0", 24, marks=pytest.mark.slow),
    ],
)
def test_a_part_that_fails_is_said(simreduce, tmp_path, command, part, ranks):
    """Its name above the answer and in the document, which counts the GPUs that are left."""
    path, first = tmp_path / "a.toml", {"node": "n0", "spine": "spine0"}.get(part, part)
    path.write_text(
        'topology = "dgx1vx3,fabric=fat_tree,radix=8,oversubscription=4"\nworkload = "alexnet"\n'
        f'strategies = ["nccl"]\nfails = "{part}"\n[step]\nbatch = 32\nrate = "5 TFLOP/s"\n'
    )
    more = ("--target", "nccl", "--objective", "time") if command == "tune" else ()
    more = ("--algo", "nccl") if command == "explain" else more
    text, document = (simreduce(command, path, *more, *j) for j in ((), ("--json",)))
    found = json.loads(document.out)

    assert (0, 0) == (text.status, document.status), text.err
    assert any(
        line.startswith("# disturbed") and line.endswith(f" without {first}")
        for line in text.out.splitlines()
    )
    assert (ranks, f"without {first}") == (found["ranks"], found["disturbance"])


@pytest.mark.parametrize("name", ["run", "bench", *slow(["step", "tune", "explain"])])
@pytest.mark.usefixtures("asked")
def test_settings_of_nccl_are_said(simreduce, name):
    """Above the answer and in its document, in NCCL's words."""
    given = ("--nccl", "version=2.18", "--nccl", "NCCL_ALGO=Ring")
    text, document = simreduce(*ASKED[name], *given), simreduce(*ASKED[name], *given, "--json")
    plain = json.loads(simreduce(*ASKED[name], "--json").out)
    words = "version=2.18 NCCL_ALGO=ring"

    assert any(
        line.startswith("# nccl") and line.endswith(f" {words}") for line in text.out.splitlines()
    )
    assert words == json.loads(document.out)["nccl_settings"] != plain["nccl_settings"] == ""


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["bench", "dgx1v", "--algo", "nccl", "--nccl", "{}", "--nccl", "{}"], "--nccl: "),
        (["nccl", "dgx1v", "{}", "{}"], ""),
        (["nccl", "dgx1v", "--conf", "nccl.conf"], "--conf: nccl.conf: line 2: "),
    ],
)
@pytest.mark.usefixtures("asked")
def test_a_setting_of_nccl_with_two_values_is_refused(simreduce, arguments, place):
    """The same value twice is one."""
    lines = ["NCCL_ALGO=Ring", "NCCL_ALGO=Tree"]
    Path("nccl.conf").write_text("\n".join(lines))
    values = iter(lines)
    typed = [next(values) if each == "{}" else each for each in arguments]
    again = [lines[0] if each == "{}" else each for each in arguments]

    why = "NCCL_ALGO is 'Ring' and 'Tree'; give one of them"
    assert (2, "", f"simreduce: {place}{why}\n") == simreduce(*typed)
    Path("nccl.conf").write_text("\n".join(lines[:1] * 2))
    assert simreduce(*again).status == 0


@pytest.mark.parametrize("command", ["run", "step", "tune", "explain"])
@pytest.mark.usefixtures("asked")
def test_a_route_that_a_scenario_cuts_leads_to_its_key(simreduce, command):
    """The error names the file and the key."""
    spines = "".join(f"spine{i} = 0\n" for i in range(4))
    Path("cut.toml").write_text(
        'topology = "dgx1vx4,fabric=fat_tree,radix=4"\nworkload = "alexnet"\n'
        f'strategies = ["nccl"]\n[link_factors]\n{spines}[step]\nbatch = 1\nrate = "1 TFLOP/s"\n'
    )
    status, _, err = simreduce(command, "cut.toml")

    assert status == 2
    assert err == (
        "simreduce: cut.toml: link_factors: n1.gpu0, n1.gpu1, n1.gpu2 and 21 more are cut off from "
        "the other 8 GPUs by spine0, spine1, spine2 and 1 more\n"
    )
