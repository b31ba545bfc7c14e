"""Ctrl-C and SIGTERM: status 130 and the results so far; and how far a command is, on stderr."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from functools import wraps
from importlib import import_module
from math import inf

import pytest

from simreduce.app.cli import reply, setups
from simreduce.computing.workers import time_is_up, within
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock
from tests.thorough import slow

SCENARIO = 'topology = "full:4"\nworkload = "bytes:64K"\nstrategies = ["ring", "direct", "xring"]\n'


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def stop_after(monkeypatch):
    """Send this process a SIGTERM when a function of a module was called so many times."""

    def replace(module, name, calls):
        function, called = getattr(module, name), []

        def counted(*arguments, **options):
            called.append(name)
            if len(called) == calls + 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    return replace


def test_a_ranking_that_is_stopped_ranks_what_it_has(simreduce, scenario, stop_after):
    stop_after(import_module("simreduce.study.tune.rank"), "evaluate", 2)
    status, out, _ = simreduce("run", scenario, "--workers", "1")
    assert (130, "stopped with 1 other untried") == (status, out.splitlines()[-1])


def test_the_document_of_a_ranking_that_is_stopped(simreduce, scenario, stop_after):
    stop_after(import_module("simreduce.study.tune.rank"), "evaluate", 1)
    status, out, _ = simreduce("run", scenario, "--workers", "1", "--json")
    document = json.loads(out)

    assert (130, False, ["ring"]) == (
        status,
        document["complete"],
        [each["strategy"] for each in document["candidates"]],
    )


def test_a_stop_while_the_answer_is_written_does_not_lose_it(simreduce, scenario, stop_after):
    """Only the exit status says so; a second one would end it."""
    whole = simreduce("run", scenario, "--workers", "1")
    stop_after(import_module("simreduce.app.cli.run"), "ranking_table", 0)

    assert simreduce("run", scenario, "--workers", "1") == (130, *whole[1:])


def test_signals_within_a_second_are_one(simreduce, scenario, stop_after):
    """`timeout` sends one to a command and one to its group, which came while workers were ended,
    and the answer was lost.
    """
    stop_after(import_module("simreduce.study.tune.rank"), "evaluate", 2)
    stop_after(import_module("simreduce.app.cli.run"), "Reply", 0)
    status, out, _ = simreduce("run", scenario, "--workers", "1")
    assert (130, "stopped with 1 other untried") == (status, out.splitlines()[-1])


@pytest.fixture
def dawdle_after(monkeypatch):
    """Have a function of a module take very long when it was called so many times."""

    def replace(module, name, calls, seconds=30):
        function, called = inspect.unwrap(getattr(module, name)), []

        @wraps(function)
        def counted(*arguments, **options):
            called.append(name)
            if len(called) == calls + 1:
                time.sleep(seconds)
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    return replace


@pytest.mark.parametrize("option", [("--budget", "2 s"), ("--quick",)])
def test_a_budget_of_time_ends_a_ranking_with_what_it_has(
    simreduce, scenario, dawdle_after, monkeypatch, option
):
    monkeypatch.setattr(setups, "QUICK", 2.0)
    dawdle_after(import_module("simreduce.study.tune.rank"), "evaluate", 2)
    begun = time.monotonic()
    status, out, _ = simreduce("run", scenario, "--workers", "1", *option)
    assert time.monotonic() - begun < 20
    words = "left out for time: 1 other that promises least (--budget; how many depends on this"
    assert (0, f"{words} machine's speed)") == (status, out.splitlines()[-1])
    dawdle_after(import_module("simreduce.study.tune.rank"), "evaluate", 1, 6)
    document = json.loads(simreduce("run", scenario, "--workers", "1", *option, "--json").out)
    assert (document["complete"], document["hurried"]) == (False, True)


def test_a_budget_of_time_that_suffices_changes_nothing(simreduce, scenario):
    command = ("run", scenario, "--workers", "1", "--json")
    found, whole = simreduce(*command, "--budget", "1h"), simreduce(*command)
    assert (found.status, found.out) == (0, whole.out)
    assert json.loads(whole.out)["hurried"] is False


def test_a_budget_is_a_time_with_its_unit(simreduce, scenario):
    found = simreduce("run", scenario, "--budget", "30", "--quick")
    assert found.status == 2
    assert found.err.splitlines() == [
        "simreduce: --budget: '30' has no unit; write for example '1.5 us' or '700 ns'",
        "simreduce: --quick: is --budget 5s; give one of them",
    ]
    assert simreduce("run", scenario, "--budget", "0s").err == (
        "simreduce: --budget: must be more than 0 s\n"
    )


def test_an_explanation_that_is_stopped_keeps_the_changes_it_tried(simreduce, stop_after):
    stop_after(Setup, "find_seconds", 2)
    command = ("explain", "full:4", "-b", "64K")
    status, out, _ = simreduce(*command)

    assert (130, "stopped before all changes were simulated") == (status, out.splitlines()[-1])
    assert "The same plan, simulated again with one change" in out


def test_a_recommendation_is_never_that_of_a_part(simreduce, scenario, stop_after):
    stop_after(import_module("simreduce.study.tune.rank"), "evaluate", 2)
    status, out, _ = simreduce("explain", scenario, "--workers", "1")

    assert (130, "") == (status, out)


@pytest.mark.parametrize("blow", [signal.SIGINT, *slow([signal.SIGTERM])])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["topo", "trees", "dgx1vx8"], id="topo"),
        pytest.param(
            ["trace", "fat_tree:1024", "--algo", "ring", "-b", "64M", "-o", "trace.json"],
            id="trace",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_command_without_partial_results_ends_with_status_130(tmp_path, arguments, blow):
    """It leaves no file, and no traceback."""
    command = [sys.executable, "-m", "simreduce", *arguments]
    terminal, its = os.openpty()  # where progress is drawn after a second
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=its) as child:
        os.close(its)
        told = os.read(terminal, 1000)
        child.send_signal(blow)
        try:
            out = child.communicate(timeout=60)[0]
        finally:
            child.kill()
        told += os.read(terminal, 1000)
    os.close(terminal)

    # Where the interrupt passed through an `exec` (an import of scipy), Python ends itself with
    # SIGINT, which shells show as 130 too.
    assert child.returncode in (130, -signal.SIGINT)
    assert b"" == out
    assert b"ing the plan" in told or b"packing trees" in told
    assert b"Traceback" not in told
    assert [] == list(tmp_path.iterdir())


class _Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_an_interrupt_that_python_drops_is_raised_again():
    """Python drops exceptions of destructors and of callbacks, as numba has where it loads code."""
    hook = sys.unraisablehook

    def work():
        with reply.interruptible():
            _Interrupted()
            for _ in range(1000):  # an interrupt by a thread waits for the end of a sleep
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        work()

    assert hook is sys.unraisablehook


def _draw(monkeypatch, capsys, *, terminal):
    """What is said of some slow work."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(reply, "QUIET", 0.05)
    with reply.Progress("made {} of {} things") as told:
        told(1, 3)
        time.sleep(0.13)
        told(3, 3)
    assert told.complete
    return capsys.readouterr().err


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch, capsys):
    said = _draw(monkeypatch, capsys, terminal=False)

    assert {"made 1 of 3 things, 0 s"} == set(said.splitlines())
    assert "\r" not in said


def test_it_says_what_is_done_of_the_next(monkeypatch, capsys):
    monkeypatch.setattr(reply, "QUIET", 0.05)
    with reply.Progress("made {} of {} things") as told:
        told(1, 3)
        told.name("building the second")
        time.sleep(0.13)

    assert {"made 1 of 3 things, building the second, 0 s"} == set(
        capsys.readouterr().err.splitlines()
    )


def test_on_a_terminal_a_line_is_drawn_at_once_and_disappears(monkeypatch, capsys):
    said = _draw(monkeypatch, capsys, terminal=True)

    bar = "\u2501" * 6 + "\u2500" * 14
    assert said.startswith(f"\r\033[K{bar} made 1 of 3 things, 0 s\r\033[K")
    assert said.endswith("things, 0 s\r\033[K")


def test_it_says_how_long_the_rest_takes_unless_time_is_up_before(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for seconds, words in ((3600, "20 s"), (12, "12 s")):
        with within(seconds), reply.Progress("made {} of {} things") as told:
            told._began -= 10
            told(1, 3)
        assert f"made 1 of 3 things, 10 s, about {words} left" in capsys.readouterr().err


def test_long_work_of_a_command_with_quick_points_at_it(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for done, words in ((0, ""), (1, ", about 90 s left"), (60, ", about 15 s left")):
        with reply.Progress("made {} of {} things", quick=True) as told:
            told._began -= 30
            told.counts = (done, 4 if done < 2 else 90)
            told._draw()
        hint = " (--quick answers in seconds)" * (done < 2)
        assert f"made {done} of {told.counts[1]} things, 30 s{words}{hint}\r" in (
            capsys.readouterr().err.replace("\r\033[K", "", 1) + "\r"
        )
    with within(3600), reply.Progress("made {} of {} things", quick=True) as told:
        told._began -= 30
        told(1, 4)
    assert "quick" not in capsys.readouterr().err


def test_quick_work_says_nothing_where_there_is_no_terminal(capsys):
    with reply.Progress("made {} of {} things") as told:
        told(3, 3)

    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "full:4", "-b", "1K"],
        ["trace", "full:4", "-b", "1K", "-o", "/dev/null"],
        ["topo", "trees", "dgx1v"],
        ["topo", "rings", "dgx1v"],
        ["topo", "p2p", "dgx1v"],
        ["verify", "--all", "--count", "1", "--workers", "1"],
        ["explain", "full:4", "-b", "1K"],
        ["run", "scenario", "--workers", "1"],
        ["step", "scenario", "--workers", "1"],
    ],
    ids=" ".join,
)
def test_every_long_command_says_how_far_it_is(simreduce, monkeypatch, scenario, arguments):
    """Each does its work inside a `Progress`; here that is all it gets to."""

    def reached(_self):
        raise Deadlock("reached")

    scenario.write_text(f'{SCENARIO}[step]\nbatch = 1\ntime = "1 ms"\n')
    monkeypatch.setattr(reply.Progress, "__enter__", reached)
    done = simreduce(*(str(scenario) if a == "scenario" else a for a in arguments))

    assert (1, "simreduce: reached\n") == (done.status, done.err)


def test_a_command_that_is_stopped_before_its_first_result_says_so(simreduce, scenario, stop_after):
    """And prints no part of a document."""
    stop_after(import_module("simreduce.study.tune.rank"), "evaluate", 0)

    status, out, err = simreduce("run", scenario, "--workers", "1", "--json")

    assert (130, "") == (status, out)
    assert "simreduce: stopped before there was a result" == err.strip()


def test_on_a_terminal_what_is_known_stands_above_the_line_and_disappears(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(reply, "_BLINK", 0.0)
    rows: list[str] = []
    with reply.Progress("made {} of {} things", lambda _: rows) as told:
        rows += ["one", "x" * 500]
        told(1, 3)
        told(2, 3)
    said = capsys.readouterr().err
    first, second, end = said.split("\r\033[2A\033[J")

    lines = first.removeprefix("\r\033[K").splitlines()
    bar = "\u2501" * 6 + "\u2500" * 14
    assert ["one", f"{bar} made 1 of 3 things, 0 s"] == [lines[0], lines[2]]
    assert len(lines[1]) < 200
    assert second.endswith("made 2 of 3 things, 0 s")
    assert "" == end


@pytest.mark.parametrize(("width", "bar"), [(80, 20), (40, 15), (28, 0), (12, 0)])
def test_a_line_is_narrower_than_the_terminal_on_stderr(monkeypatch, capsys, width, bar):
    """The bar takes the room that the words leave."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(reply, "_size", lambda: (width, 24))
    with reply.Progress("made {} of {} things") as told:
        told(1, 3)
    line = capsys.readouterr().err.split("\r\033[K")[1]

    assert len(line) < width
    assert line.endswith("made 1 of 3 things, 0 s"[: width - 1])
    assert bar == sum(line.count(sign) for sign in "\u2501\u2500")


def test_lines_that_a_narrower_terminal_wrapped_are_cleared(monkeypatch, capsys):
    """80 columns, then 20: the line of 44 characters takes three rows, the one above two."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(reply, "_BLINK", 0.0)
    sizes = [(80, 24)]
    monkeypatch.setattr(reply, "_size", lambda: sizes[-1])
    with reply.Progress("made {} of {} things", lambda _: ["x" * 30]) as told:
        told(1, 3)
        sizes.append((20, 24))
        told(2, 3)
    said = capsys.readouterr().err

    assert "\r\033[4A\033[J" in said
    assert said.endswith("\r\033[1A\033[J")


def test_a_terminal_without_escapes_gets_lines(monkeypatch, capsys):
    """TERM=dumb, as in an editor."""
    monkeypatch.setenv("TERM", "dumb")

    assert "\033" not in _draw(monkeypatch, capsys, terminal=True)


def test_a_notice_removes_the_line_of_progress_first(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with reply.Progress("made {} of {} things") as told:
        told(1, 3)
        reply.say("a notice")
    said = capsys.readouterr().err

    assert "made 1 of 3 things, 0 s\r\033[Ka notice\n" in said


def test_an_interrupt_while_an_answer_is_prepared_leaves_out_what_it_can_do_without(
    capfd, monkeypatch
):
    """The first one; the second, after more than a second, ends it."""
    monkeypatch.setattr(reply, "_heard", heard := [-inf])
    with reply.holding_interrupts() as held:
        os.kill(os.getpid(), signal.SIGINT)
        assert time_is_up()
        os.kill(os.getpid(), signal.SIGTERM)
        assert held == [signal.SIGINT]
        heard[0] = -inf
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert not time_is_up()
    assert "once more ends without it" in capfd.readouterr().err
