"""`simreduce report`: a page of a scenario, of results, and what is refused."""

from __future__ import annotations

import json
import re
import time
from importlib import import_module

import pytest

from simreduce.app.look import step_exports
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.steps import rank_steps

SCENARIO = """
topology = "switch:4"
workload = "bytes:64K"
strategies = ["ring", "nccl"]
"""


@pytest.fixture
def scenario(write):
    return write("two.toml", SCENARIO)


def test_a_scenario_becomes_a_page_with_all_its_parts(simreduce, scenario, tmp_path):
    """Load, critical path, what would help, timeline, curves; how to repeat it."""
    done = simreduce("report", scenario, "--workers", "1", "-o", "out.html")

    page = (tmp_path / "out.html").read_text("utf-8")
    assert (done.status, done.out) == (0, "out.html: open it in a browser\n")
    for title in (
        "What to run", "What to paste", "Machine and load", "What limits it", "What would help",
        "Timeline", "Over sizes", "Calibration and its error", "Repeat it",
    ):  # fmt: skip
        assert f">{title}</h2>" in page
    assert "simreduce report two.toml</pre>" in page
    assert "topology = &#34;switch:4&#34;" in page


STEP = """
topology = "switch:4"
workload = "resnet50"
strategies = ["nccl", "ring", "nccl+ddp"]
[step]
batch = 4
time = "20 ms"
"""


def test_what_to_paste_begins_with_the_framework_of_the_advice(write):
    """And goes on with what each of the others is advised."""
    text = STEP.replace('"nccl",', '"nccl", "nccl+fusion",')
    ranking = rank_steps(load_scenario(str(write("step.toml", text))))
    exports, advice = step_exports(ranking), ranking.advice
    expressed = [each for each in advice if each.framework]

    assert len(expressed) > 1
    assert [each.framework for each in expressed] == [e.name for e in exports[: len(expressed)]]
    for exported, advised in zip(exports, expressed, strict=False):
        name = advised.option.name
        assert exported.instead == (name if name != ranking.recommended.step.method else "")


def test_a_page_says_what_a_budget_of_time_left_out(simreduce, write, monkeypatch, tmp_path):
    """What to run is known, what would help is not; what frameworks run today is waited for."""
    step = write("step.toml", STEP)
    whole = "simreduce.app.cli.report.look_at_step"
    monkeypatch.setattr(whole, lambda *_: time.sleep(30))
    monkeypatch.setattr("simreduce.computing.workers.GRACE", 10.0)  # of a busy machine
    begun = time.monotonic()
    done = simreduce("report", step, "--workers", "1", "--budget", "1ms", "-o", "out.html")
    page = (tmp_path / "out.html").read_text("utf-8")
    assert time.monotonic() - begun < 20
    assert (done.status, done.out) == (0, "out.html: open it in a browser\n")
    assert "Left out to save time: what promises least." in page
    assert "Left out to save time; a longer --budget has it." in page
    assert "The command was stopped" not in page
    assert ">What would help</h2>" not in page
    assert "2 methods simulated." in page
    assert 'simreduce report step.toml <span class="token">--budget</span> 1ms</pre>' in page
    assert 'simreduce step step.toml <span class="token">--trace</span> step.json</pre>' in page


def test_a_page_is_the_same_on_a_busy_machine(simreduce, write, monkeypatch, tmp_path):
    """By default the work is counted, and not the time: by one process or two."""
    module = "simreduce.app.cli.report"
    monkeypatch.setattr(f"{module}._BUDGET", 0.8)
    write("all.toml", 'topology = "switch:4"\nworkload = "resnet50"\n')
    command = ("report", "all.toml", "-o", "out.html", "--workers")
    assert simreduce(*command, "1").status == 0
    quiet = (tmp_path / "out.html").read_text("utf-8")
    for name in ("rank", "look_closer", "bench_sizes"):
        dawdle(monkeypatch, f"{module}.{name}", 0.6)
    dawdle(monkeypatch, "simreduce.study.tune.rank.evaluate", 0.05)
    for workers in ("1", "2"):
        assert simreduce(*command, workers).status == 0
        assert (tmp_path / "out.html").read_text("utf-8") == quiet
    assert "Left out to save time: what promises least." in quiet
    assert "The command was stopped" not in quiet
    assert ">What would help</h2>" in quiet


def dawdle(monkeypatch, name, seconds):
    """Let a function take so long."""
    module, _, attribute = name.rpartition(".")
    function = getattr(import_module(module), attribute)

    def slow(*arguments, **options):
        time.sleep(seconds)
        return function(*arguments, **options)

    monkeypatch.setattr(name, slow)


def test_results_make_a_page_and_nothing_is_computed(simreduce, scenario, tmp_path, monkeypatch):
    """The answer of the ranking, and the load that explain adds."""
    run = simreduce("run", scenario, "--json").out
    explain = simreduce("explain", scenario, "--algo", "ring", "--json").out
    (tmp_path / "run.json").write_text(run)
    (tmp_path / "explain.json").write_text(explain)
    for name in ("simulate_within", "summarise_within", "find_seconds", "record"):
        monkeypatch.setattr(f"simreduce.engine.simulator.Simulator.{name}", None)

    done = simreduce("report", "run.json", "explain.json", "-o", "-")
    assert done.status == 0
    assert json.loads(run)["recommended"] in done.out
    assert "Machine and load" in done.out
    alone = simreduce("report", "run.json", "-o", "-")
    assert "Machine and load" not in alone.out
    assert "add that of simreduce explain --json" in alone.out


def test_a_database_of_a_sweep_has_a_page(simreduce, tmp_path, monkeypatch):
    """Of its last sweep, by the content of the file, whatever its name."""
    monkeypatch.chdir(tmp_path)
    simreduce("sweep", "switch:4", "--over", "strategy=ring,nccl", "--db", "sweep.x")

    done = simreduce("report", "sweep.x", "-o", "-")
    assert done.status == 0
    assert "What matters most?" in done.out
    assert "All 2 cells" in done.out
    assert ">Machine</h2>" in done.out
    simreduce("sweep", "dgx-a100", "--over", "nodes=1,2", "--db", "sweep.y")
    assert ">Machine of the fastest cell</h2>" in simreduce("report", "sweep.y", "-o", "-").out


def test_each_result_adds_what_it_knows(simreduce, scenario, write):
    """Load, critical path and savings of an explanation, curves of a bench; in any order that has a
    meaning.
    """
    run = write("run.json", simreduce("run", scenario, "--json").out)
    tune = write("tune.json", simreduce("tune", scenario, "--json").out)
    explain = write("explain.json", simreduce("explain", scenario, "--algo", "ring", "--json").out)
    some = ("bench", "switch:4", "--algo", "ring,nccl", "-b", "64K", "-e", "1M", "-f", "16")
    bench = write("bench.json", simreduce(*some, "--json").out)

    for first, *others in (
        (run, explain, bench), (tune, explain, bench), (bench, explain), (explain, bench),
    ):  # fmt: skip
        page = simreduce("report", first, *others, "-o", "-").out
        for title in ("Machine and load", "What limits it", "What would help", "Over sizes"):
            assert page.count(f">{title}</h2>") == 1
    refused = simreduce("report", run, tune)
    assert (refused.status, "a result of tune adds nothing to another" in refused.err) == (2, True)


def test_bad_input_is_named(simreduce, scenario, write):
    """Mixed sources, options of a scenario on a result, another machine, what is no result."""
    run = write("run.json", simreduce("run", scenario, "--json").out)
    other = write("other.json", json.dumps({"command": "explain", "topology": "dgx1v"}))

    mixed = simreduce("report", run, scenario)
    assert (mixed.status, "give one scenario, or results alone" in mixed.err) == (2, True)
    again = simreduce("report", run, "--algo", "ring")
    assert (again.status, "--algo: a result is not computed again" in again.err) == (2, True)
    moved = simreduce("report", run, other)
    assert (moved.status, "its topology is 'dgx1v', not 'switch:4'" in moved.err) == (2, True)
    none = simreduce("report", write("x.json", "{}"))
    assert (none.status, "x.json: has no key command" in none.err) == (2, True)
    lost = simreduce("report", "nowhere", "-o", "no/such/x.html")
    assert lost.status == 2
    assert "there is no such folder" in lost.err
    assert "nowhere" in lost.err


REPLICAS = """
topology = "p3-16xlargex4"
runtime = "tensorflow"
[replicas]
workers = ["n0.gpu0", "n1.gpu0", "n2.gpu0"]
servers = 1
size = "40 MB"
compute = {distribution = "exponential", mean = "9 ms"}
updates = 4
repetitions = 3
"""


def test_replicas_have_a_page(simreduce, write, tmp_path):
    """How many backups, what limits an update, what would help, timeline; and a page of what step
    printed, which says what that lacks.
    """
    name = write("replicas.toml", REPLICAS)
    done = simreduce("report", name, "--workers", "1", "-o", "out.html")

    page = (tmp_path / "out.html").read_text("utf-8").replace("<wbr>", "")
    assert (done.status, done.err) == (0, "")
    for title in (
        "How many backups", "What limits it", "What would help", "Machine and load", "Timeline",
        "Calibration and its error", "Repeat it",
    ):  # fmt: skip
        assert f">{title}</h2>" in page
    assert "with one more tcp_25 port beside each, the same update" in page
    plain = re.sub("<[^>]+>", "", page)
    assert "simreduce step replicas.toml --backups --trace step.json" in plain
    told = simreduce("step", name, "--json").out
    alone = simreduce("report", write("step.json", told), "-o", "-").out
    mean = json.loads(told)["step_time_us"]["mean"]
    assert f"One update takes {mean / 1e3:.2f} ms with 0 backups" in alone
    assert "simreduce step --backups compares numbers of backups." in alone


@pytest.mark.slow
def test_a_step_says_what_more_lanes_save_of_the_step(simreduce, write, tmp_path):
    """Beside PyTorch's DDP; load, critical path and what would help are those of the step."""
    text = SCENARIO.replace("switch:4", "dgx1vx2").replace("bytes:64K", "alexnet")
    text = text.replace('"ring", "nccl"', '"nccl", "nccl+ddp"')
    name = write("step.toml", text + '[step]\nbatch = 8\nrate = "100 TFLOP/s"\n')

    done = simreduce("report", name, "--workers", "1", "-o", "out.html")
    page = (tmp_path / "out.html").read_text("utf-8").replace("<wbr>", "")
    assert done.status == 0
    assert "less time</span>" in page
    assert "with one more ib_edr port beside each, the same step takes" in page
    assert "PyTorch&#39;s DDP" in page
    assert "The critical path of a step of nccl" in page
    assert "DistributedDataParallel(model, **ARGUMENTS, **more)" in re.sub("<[^>]+>", "", page)
    assert "while a step of nccl" in page
    assert "The same step, simulated again with one change" in page
    assert ">Timeline</h2>" in page


def test_jobs_have_a_page(simreduce, write, tmp_path):
    """With what each loses, and where their ranks are; options of scenarios are not for them."""
    file = write(
        "jobs.toml",
        """
        topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1"
        [[job]]
        name = "first"
        nodes = [0, 2]
        workload = "bytes:1M"
        [[job]]
        name = "second"
        nodes = [1, 3]
        workload = "bytes:1M"
        """,
    )
    output = tmp_path / "jobs.html"
    assert simreduce("report", file, "-o", str(output)).status == 0
    page = output.read_text()
    for words in ("Where ranks are", "first, beside the others", "Which job loses most?", "A.1"):
        assert words in page
    refused = simreduce("report", file, "--jitter", "0.1", "-o", str(output))
    assert refused.status == 2
    assert "--jitter: is not for jobs; leave it out" in refused.err
