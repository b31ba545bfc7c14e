"""What the page says of a view is what the commands say of the scenario that it shows."""

from __future__ import annotations

import gc
import html
import re
import shlex
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from simreduce.app.serve import worker as module
from simreduce.app.serve.view import read_view
from simreduce.app.serve.worker import Sayer, answer
from simreduce.errors import InputError
from simreduce.report.blocks import Attachments
from simreduce.report.jobs import BESIDE
from simreduce.report.pages import make_page, page_parts
from simreduce.report.ranking import RUN
from simreduce.study.job_files import load_jobs
from simreduce.study.scenario_files import load_meshes, load_scenario
from simreduce.study.tune.jobs import answer_jobs
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.study.tune.rank import rank
from simreduce.topology import load_topology


@pytest.fixture
def quick(monkeypatch):
    """Answers without a close look and curves."""
    monkeypatch.setattr(module, "look_closer", lambda *given: (given[2], True))
    monkeypatch.setattr(module, "bench_sizes", lambda *_: (None, True))


def _said(query, files=None, known=None):
    said = []
    files = files or {}
    answer(read_view(query, files), files, known or PlanCache(), Sayer(said.append, lambda: None))
    return said


def _html(page):
    return "".join(part["html"] for part in page["page"]["parts"])


def _blocks(page):
    found = re.findall(r"<pre[^>]*>(.*?)</pre>", _html(page), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", each)) for each in found]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "query",
    [
        "machine=mine&size=1MiB",
        "machine=mine&algo=nccl,ring&packing=packs=2&link=gpu0<>gpu3=0.5",
    ],
)
def test_the_scenario_of_a_view_ranks_the_same_to_the_bit(query, tmp_path, monkeypatch):
    """Of a file of the command line too, whose path the command has; and from what is known."""
    mine = tmp_path / "folder of mine" / "mine.toml"
    mine.parent.mkdir()
    mine.write_text('extends = "dgx1v"\n')
    monkeypatch.chdir(tmp_path)
    known, documents = PlanCache(), []
    monkeypatch.setattr(module, "RUN", SimpleNamespace(write=lambda r: _keep(r, documents)))
    _said("machine=mine&size=2MiB&algo=nccl,ring", {"mine": str(mine)}, known)
    page = _said(query, {"mine": str(mine)}, known)[-1]

    blocks = _blocks(page)
    [command] = [each for each in blocks if each.startswith("simreduce serve")]
    assert shlex.split(command)[2:] == [str(mine), query]
    [text] = [each for each in blocks if "topology = " in each]
    Path("view.toml").write_text(text)
    theirs = RUN.write(rank(load_scenario("view.toml"), 1))
    ours = documents[-1]
    assert ours["candidates"] == theirs["candidates"]
    assert ours["recommended"] == theirs["recommended"]


def _keep(ranking, documents):
    documents.append(RUN.write(ranking))
    return documents[-1]


@pytest.mark.usefixtures("quick")
def test_the_strategy_to_look_at_is_that_of_the_view_if_it_is_there():
    """Else the recommended one, which the page does not pin."""
    query = "machine=dgx1v&size=1MiB&algo=nccl,ring"
    assert _said(f"{query}&look=ring")[-1]["page"]["look"] == "ring"
    assert _said(f"{query}&look=direct")[-1]["page"]["look"] == ""
    assert _said(query)[-1]["page"]["look"] == ""
    names = "machine=dgx1v&size=1MiB&algo=copy_to_gpus,psgpu"  # one plan
    assert _said(f"{names}&look=psgpu")[-1]["page"]["look"] == "copy_to_gpus"


@pytest.mark.usefixtures("quick")
def test_a_ranking_that_took_long_is_shown_before_the_close_look(monkeypatch):
    """And the drawing without loads says that it has none."""
    query = "machine=dgx1v&size=1MiB&algo=ring"
    kinds = [next(iter(each)) for each in _said(query) if "progress" not in each]
    assert kinds == ["machine", "page", "page", "page"]
    monkeypatch.setattr(module, "_SOON", 0.0)
    said = [each for each in _said(query) if "progress" not in each]
    assert [next(iter(each)) for each in said] == ["machine", *4 * ["page"]]
    assert said[0]["machine"]["loaded"] is False


@pytest.fixture
def no_callbacks():
    """No callbacks of the collector: what a signal raises in one is lost."""
    kept = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = kept


@pytest.mark.usefixtures("quick", "no_callbacks")
def test_what_promises_most_is_shown_before_the_rest(monkeypatch):
    """And what NCCL runs by itself is waited for."""
    monkeypatch.setattr(module, "_FIRST", 0.0)
    pages = [each["page"] for each in _said("size=1MiB&algo=ring,xring,nccl") if "page" in each]
    assert [len(page["strategies"]) for page in (pages[0], pages[-1])] == [1, 4]
    assert pages[0]["strategies"] == ["nccl"]


def test_a_view_with_faults_shows_the_machine_if_that_is_right():
    """So that one sees which links there are."""
    said = []
    view = read_view("machine=dgx1v&link=gpu0<>gpu9=0.5", {})
    with pytest.raises(InputError, match="did you mean 'gpu0<>gpu"):
        answer(view, {}, PlanCache(), Sayer(said.append, lambda: None))
    assert [next(iter(each)) for each in said] == ["machine"]


@pytest.mark.usefixtures("quick")
def test_a_cut_leaves_what_is_possible():
    """NVLinks join gpu0 to four GPUs: NCCL needs no more."""
    page = _said("machine=dgx1v&size=1MiB&link=gpu0<>plx0=0")[-1]
    [text] = [each for each in _blocks(page) if "topology = " in each]

    assert "nccl" in page["page"]["strategies"]
    assert "copy_to_cpu" not in page["page"]["strategies"]
    assert "strategies are not possible here" in _html(page)
    assert '"copy_to_cpu"' not in text
    assert '"nccl"' in text


def test_a_gpu_that_is_cut_off_is_one_sentence():
    with pytest.raises(InputError) as caught:
        _said("machine=pcie-single-root-4&size=1MiB&link=gpu0<>plx0=0")

    assert caught.value.problems == ("link: gpu0 is cut off from the other 3 GPUs by gpu0<>plx0",)


@pytest.mark.parametrize(
    ("machine", "first"),
    [("dgx1v", "gpu0<>gpu1"), ("switch:4", "cpu0<>switch0"), ("pcie-no-p2p-8", "cpu0<>cpu1")],
)
def test_links_that_are_the_only_one_of_a_gpu_come_last(machine, first):
    said = []
    with suppress(InputError):
        answer(read_view(f"machine={machine}&algo=rong", {}), {}, PlanCache(),
               Sayer(said.append, lambda: None))  # fmt: skip
    wires = said[0]["machine"]["wires"]
    gpus = load_topology(machine).devices
    degrees = Counter(end for wire in wires for end in wire.split("<>"))
    only = [any(gpu in wire.split("<>") and degrees[gpu] == 1 for gpu in gpus) for wire in wires]

    assert wires[0] == first
    assert only == sorted(only)


def test_meshes_are_answered_as_step_does(tmp_path):
    """The page of the scenario that the view shows, with the timeline at the end."""
    query = "machine=dgx-a100&model=llama-3-8b&mesh=tp=8&global_batch=8&recompute=full"
    first, *_, last = (message for message in _said(query) if "page" in message)
    (text,) = (block for block in _blocks(last) if block.startswith("topology"))
    file = tmp_path / "view.toml"
    file.write_text(text, "utf-8")
    best = rank_meshes(load_meshes(str(file))).recommended.step

    for page in (first, last):
        assert "Train with tp=8, micro batches of 1, full recomputation" in _html(page)
        assert f"{best.tokens_per_second:,.0f} tokens/s" in _html(page)
    charts = [chart for part in last["page"]["parts"] for chart in part["charts"]]
    assert len(charts) > len([c for part in first["page"]["parts"] for c in part["charts"]])
    assert any("simreduce step view.toml" in block for block in _blocks(last))


JOBS = """
topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1,oversubscription=2"
[[job]]
name = "a"
nodes = [0, 2]
workload = "bytes:1M"
count = 1
[[job]]
name = "b"
nodes = [3, 1]
workload = "bytes:4M"
count = 1
"""


def test_jobs_get_the_page_that_report_makes(tmp_path):
    """With the picture of where ranks are, and the file that repeats a view."""
    file = tmp_path / "two.toml"
    file.write_text(JOBS)
    plain = _said("jobs=two", {"two": str(file)})
    moved = _said("jobs=two&link=leaf0<>spine0=0.5", {"two": str(file)})[-1]
    asked = load_jobs(str(file))
    found = answer_jobs(asked)
    beside = Attachments(machine=None, calibration=asked.setup.calibration)
    theirs = {part.key: part for part in page_parts(make_page(BESIDE.write(found), beside))}
    ours = {part["key"]: part for part in plain[-1]["page"]["parts"]}
    [text] = [each for each in _blocks(moved) if "[[job]]" in each]
    file.write_text(text)

    assert "leaf0<>spine0" in plain[0]["machine"]["wires"]
    assert {"answer", "jobs", "places", "calibration"} <= set(ours)
    for key in ("answer", "jobs", "places", "calibration"):
        assert ours[key]["html"] == theirs[key].html
        assert ours[key]["charts"] == theirs[key].charts
    assert "<svg" in ours["places"]["html"]
    again = _said("jobs=two", {"two": str(file)})[-1]
    assert again["page"]["parts"][:3] == moved["page"]["parts"][:3]
    assert again["page"]["parts"][1] != plain[-1]["page"]["parts"][1]


@pytest.mark.usefixtures("quick")
def test_an_early_answer_says_that_work_goes_on_and_names_no_option(monkeypatch):
    """A page has no --budget, and the next answer has all."""
    monkeypatch.setattr(module, "_FIRST", 1e-9)
    early, *_, last = [
        " ".join(part["html"] for part in each["page"]["parts"])
        for each in _said("machine=dgx1v&size=1MiB&algo=nccl,ring,trees")
        if "page" in each
    ]

    assert "Still simulating" in early
    assert "--budget" not in early
    assert "Still simulating" not in last
