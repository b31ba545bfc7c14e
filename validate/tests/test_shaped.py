"""Links of known rate: what plain TCP finds on them, what TensorFlow takes over them, and that
nothing of them is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simreduce_validate.measuring import read_record
from simreduce_validate.running import open_backend
from simreduce_validate.running.links import Links
from simreduce_validate.running.namespaces import _batch
from simreduce_validate.running.shaped_links import shape_links, why_not

import simreduce as sr
from simreduce.errors import InputError
from simreduce.planners.strategy.compiler import compile_plan
from validate.tests.commands import PATH, REPOSITORY, is_alive

MBIT = 1e6 / 8


pytestmark = pytest.mark.usefixtures("shaped_links")


@pytest.fixture(scope="module", params=[0.0, 5e-3], ids=["kernel", "own switch"])
def up(request, shaped_links):  # noqa: ARG001 - skips without them
    with shape_links(Links(4, 200 * MBIT, request.param, {2: 100 * MBIT})) as found:
        yield found


@pytest.mark.parametrize(
    ("pairs", "shares"),
    [
        ([(2, 3)], [1 / 2]),
        ([(0, 1), (1, 0)], [1, 1]),
        ([(0, 3), (1, 3)], [1 / 2, 1 / 2]),
        ([(0, 1), (0, 3)], [1 / 2, 1 / 2]),
        ([(0, 2), (1, 3)], [1 / 2, 1]),
    ],
    ids=["out of slow", "both ways", "into one", "out of one", "slow and not"],
)
def test_links_carry_their_rate_and_share_it(up, pairs, shares):
    """Within 5 %, headers accounted for; the slow port carries half of what the others do."""
    before = up.lost()
    found = up.rates(pairs, 3 << 20)

    assert [share * up.links.goodput(0) for share in shares] == pytest.approx(found, rel=0.05)
    assert before == up.lost()


def test_links_have_their_delay(up):
    found = min(up.delay(0, 1) for _ in range(3))

    if up.links.delay:
        assert up.links.delay == pytest.approx(found, rel=0.15)
    else:
        assert found < 1e-3


def test_plans_run_on_them():
    """Every result is right, and large plans take what their slowest port needs, never less."""
    links = Links(3, 200 * MBIT, slow={1: 50 * MBIT})
    plan = compile_plan("ring", workload_of(3 << 20), links.layout())
    with open_backend("shaped", links.layout(), links=links) as backend:
        measured = backend.run(plan, 5)
    predicted = sr.simulate(plan, links.machine(), "tensorflow").seconds

    assert () == measured.wrong == measured.departures
    assert 4 * (1 << 20) / links.goodput(1) == pytest.approx(predicted)
    assert 0.95 * predicted < measured.seconds.min() < 1.25 * predicted
    assert links.text == measured_on(backend)


def workload_of(nbytes):
    return sr.workload.Workload("w", (sr.workload.Gradient("g", nbytes // 4),))


def measured_on(backend):
    return backend.provenance["links"]


SCRIPT = """
import time
from simreduce_validate.running.links import Links
from simreduce_validate.running.shaped_links import shape_links
with shape_links(Links(2, 25e6, {delay})) as links:
    child = __import__("subprocess").Popen([*links.workers[0].prefix, "sleep", "1000"])
    print(links._keeper.pid, child.pid, flush=True)
    try:
        {then}
    finally:
        child.kill()
"""


@pytest.mark.parametrize("delay", [0.0, 5e-3], ids=["kernel", "own switch"])
@pytest.mark.parametrize("end", ["exception", "Ctrl-C", "killed"])
def test_nothing_is_left(end, delay):
    """However the process that made them ends, the keeper ends, and with it all that it made; names
    it never had.
    """
    before = _devices(), _named()
    then = "raise ZeroDivisionError" if end == "exception" else "time.sleep(1000)"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(delay=delay, then=then)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": PATH},
        start_new_session=True,
    )  # fmt: skip
    keeper, inside = map(int, process.stdout.readline().split())
    try:
        if end != "exception":
            assert before[0] == _devices()
            os.kill(process.pid, signal.SIGINT if end == "Ctrl-C" else signal.SIGKILL)
        process.wait(20)
    finally:
        process.kill()
        process.stdout.close()
        if end == "killed":
            os.kill(inside, signal.SIGKILL)  # what others run in a namespace is theirs to end
    until = time.monotonic() + 10
    while is_alive(keeper) and time.monotonic() < until:
        time.sleep(0.05)

    assert not is_alive(keeper)
    assert before == (_devices(), _named())


def _devices():
    """The network devices outside of all namespaces of ours."""
    return sorted(
        line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text("ascii").splitlines()
    )


def _named():
    """Namespaces with names."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_two_sets_do_not_meet():
    links = Links(2, 100 * MBIT)
    with shape_links(links) as one, shape_links(links) as other:
        found = [each.rates([(0, 1)], 2 << 20)[0] for each in (one, other)]

    assert [links.goodput(0)] * 2 == pytest.approx(found, rel=0.05)


def test_the_command_keeps_predictions_and_samples(tmp_path):
    out = tmp_path / "result.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "validate", "switch:3", "--backend", "shaped", "--rate",
        "400mbit", "--delay", "2ms",
         "--slow-port", "1=200mbit", "--algo", "ring,direct", "-b", "96K", "-n", "4", "--out",
         str(out), "--json"],
        capture_output=True, text=True, timeout=200, check=False, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": PATH},
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    rows, recorded = json.loads(done.stdout)["rows"], read_record(out)

    assert ["ring", "direct", "ring"] == [row["algorithm"] for row in rows]
    assert [None, None, 0] == [f.repeats for f in recorded.forecasts]
    assert [row["predicted_time_us"] for row in rows] == [
        f.predicted_us for f in recorded.forecasts
    ]
    for row, seconds in zip(rows, recorded.seconds, strict=True):
        assert row["times_us"] == pytest.approx([1e6 * each for each in seconds])
        assert row["low_us"] <= row["time_us"] <= row["high_us"]
        assert row["time_us"] > 0.9 * row["predicted_time_us"]
    assert recorded.complete
    assert ((),) * 3 == recorded.faults
    assert "2 ms" in recorded.provenance["settings"]["links"]
    assert recorded.provenance["versions"]["tensorflow"]


def test_what_the_kernel_refuses_is_told_by_its_command():
    with pytest.raises(InputError, match=r"this kernel cannot ip link set nowhere0 up: .*nowhere0"):
        _batch("ip", ["link show lo", "link set nowhere0 up"])


def test_what_cannot_be_is_told_in_one_line(monkeypatch):
    with (
        pytest.raises(InputError, match="--rate is missing"),
        open_backend("shaped", Links(2, 25e6).layout()),
    ):
        pass
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "--backend shaped needs root, for network namespaces" == why_not()
    with pytest.raises(InputError, match="needs root"), shape_links(Links(2, 25e6)):
        pass
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "--backend shaped needs ip and tc and nsenter (iproute2, util-linux)" == why_not()
