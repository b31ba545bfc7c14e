"""Pages: every kind of document, whatever texts it has, in bytes that depend on nothing else."""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import operator
import re
from collections import Counter
from html.parser import HTMLParser
from unittest.mock import Mock

import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.export import Exported, export_choice
from simreduce.export.framework import Choice
from simreduce.files.formats.documents import TEXT, list_of
from simreduce.planners.strategy import parse_strategy
from simreduce.report.blocks import Attachments, Code, Rows, timeline_of_threads
from simreduce.report.pages import KINDS, READ, check_kinds, make_page, page_html, read_document
from simreduce.report.schemas import outputs
from simreduce.report.sections import copy_section
from simreduce.report.steps import step_document
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.steps import rank_steps
from simreduce.workload.loader import load_workload
from tests.report.pages import documents

UNSEEN = "\u2028\x1b[2J\x07\x7f\x9b\u202e\u2066"
HOSTILE = f"<script>alert(1)</script></title><!-- \"'&{{0}}%s{UNSEEN} onload=alert(1) "


class _Reader(HTMLParser):
    """Elements, attributes and texts as a browser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], {}, []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "wbr", "link", "img", "rect", "path", "circle", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A document of each kind, closer looks at some, and a recording."""
    folder = tmp_path_factory.mktemp("pages")
    recording, setup = documents.record()
    return *documents.every(folder, recording, setup), recording, setup


def _beside(found, kind: str = "") -> Attachments:
    made, looks, recording, setup = found
    path = recording.result.path.op.tolist()
    return Attachments(
        machine=setup.topology,
        calibration=setup.calibration,
        explanation=made["explain"],
        timeline=timeline_of_threads(documents.threads(recording, setup), path),
        sizes=made["bench"],
        commands=(("This report", ("simreduce report x",)),),
        files={"x.toml": "title = 1\n"},
        versions={"numpy": "2"},
        factor=1.2,
        look=looks.get(kind),
        exports=documents.EXPORTS,
    )


def _hostile(value):
    """The value with hostile text before every string that it holds."""
    if isinstance(value, str):
        return HOSTILE + value
    if isinstance(value, list):
        return [_hostile(each) for each in value]
    if isinstance(value, dict):
        return {key: each if key == "command" else _hostile(each) for key, each in value.items()}
    return value


def test_every_kind_has_a_document_here(found):
    """So that the other tests look at all of them."""
    assert set(KINDS) == {document["command"] for document in found[0].values()}
    assert set(documents.NAMES) == set(found[0])


@pytest.mark.parametrize("kind", documents.NAMES)
def test_a_page_names_no_other_place_and_admits_its_own_scripts_alone(found, kind):
    """No address, no handler, no style attribute; the policy has the digests of what is there."""
    page = page_html(make_page(found[0][kind], _beside(found, kind)))
    read = _Reader(page)

    links = [value for _, name, value in read.attributes if name in ("src", "href", "xlink:href")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert not any(name.startswith("on") or name == "style" for _, name, _ in read.attributes)
    assert not {"iframe", "object", "embed", "link", "base", "form", "img"} & set(read.tags)
    [policy] = [v for _, name, v in read.attributes if name == "content" and "default-src" in v]
    assert "default-src 'none'" in policy
    for tag in ("script", "style"):
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        own = {base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts}
        assert own == set(
            re.findall(r"'sha256-([^']+)'", policy.partition(f"{tag}-src")[2].partition(";")[0])
        )
    assert "'unsafe" not in policy


@pytest.mark.parametrize("kind", documents.NAMES)
def test_texts_are_texts_whatever_they_say(found, kind):
    """A hostile text adds no element, attribute or script, and nothing of it is unseen."""
    plain = _Reader(page_html(make_page(found[0][kind], _beside(found, kind))))
    beside = _beside(found, kind)
    machine = dataclasses.replace(beside.machine, title=HOSTILE)
    exports = tuple(
        Exported(*([HOSTILE] * 2), {HOSTILE: HOSTILE}, e.reasons and (HOSTILE,))
        for e in documents.EXPORTS
    )
    hostile = dataclasses.replace(
        beside,
        machine=machine,
        files={HOSTILE: HOSTILE},
        look=_hostile(beside.look),
        exports=exports,
    )
    page = page_html(make_page(_hostile(found[0][kind]), hostile))
    read = _Reader(page)

    assert "<script>alert" not in page.replace(HOSTILE, "")
    assert read.tags.count("script") == plain.tags.count("script") == 4
    assert read.tags.count("title") - read.tags.count("g") == plain.tags.count(
        "title"
    ) - plain.tags.count("g")
    assert {name for _, name, _ in read.attributes} == {name for _, name, _ in plain.attributes}
    assert HOSTILE.partition(UNSEEN)[0] in "".join(read.texts["title"])
    block = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.DOTALL)
    [data] = block.findall(page)
    assert not set("<>&") & set(data)
    assert not set(UNSEEN) - set("[2J") & set(page + repr(json.loads(data)))
    assert not re.search(r"(?<!\\)\\(x1b|u202e)", repr(json.loads(data)))


def test_equal_documents_make_equal_bytes(found):
    """Nothing else has a say: no time, no place, no order of a set."""
    first = page_html(make_page(found[0]["run"], _beside(found)))
    again = page_html(make_page(copy.deepcopy(found[0]["run"]), _beside(found)))

    assert first == again


def test_the_first_screen_answers_the_five_questions(found):
    """What to run, how much faster than today, how sure, what limits it, what a NIC buys."""
    page = make_page(found[0]["run"], _beside(found))

    assert [fact.question for fact in page.facts] == [
        "What should I do?",
        "What is it worth?",
        "How sure is that?",
        "What limits it?",
        "What would a second NIC buy?",
    ]
    first = found[0]["run"]["advice"][0]
    assert found[0]["run"]["recommended"] == first["strategy"]
    assert page.answer.startswith(f"{first['do']}: ")
    assert first["do"] == page.facts[0].answer
    assert page.facts[4].answer == "nothing" or page.facts[4].answer.endswith("less time")


def test_a_page_bears_the_title_of_its_scenario(found):
    """One without a title is called by its file, which says less than the machine and the job."""
    for name, own in (("run", "Two gradients"), ("step", "A step")):
        document = found[0][name]
        assert make_page(document, _beside(found)).title == own
        untitled = {**document, "title": document["scenario"]}
        assert make_page(untitled, _beside(found)).title.startswith(
            f"{document['workload']} on switch:4: "
        )


def test_a_step_is_as_sure_as_its_compute_where_that_is_most_of_it(found):
    """The rest is a prediction, as sure as published times of NCCL say."""
    document = {**found[0]["step"], "step_time_us": 100.0, "factor": 1.5}
    first = {**document["advice"][0], "strategy": "nccl+ddp"}
    document["advice"] = [first, *document["advice"][1:]]

    def card(exposed):
        page = make_page({**document, "exposed_us": exposed}, Attachments())
        return next(fact for fact in page.facts if fact.question == "How sure is that?")

    assert "as sure as its compute" == card(3.0).answer
    assert card(3.0).more.startswith("97.0% of the step is compute (FLOPs at 10 TFLOP/s). The ")
    assert "other 3.0%" in card(3.0).more
    assert card(3.0).more.endswith("80% of published times are within a factor of 1.50 of"
                                   " predictions.")  # fmt: skip
    assert "within a factor of 1.50" == card(60.0).answer


def test_the_gap_to_the_default_is_that_of_the_advice(found):
    document = {**found[0]["run"], "recommended": "nccl+ddp=100"}
    row = {**document["candidates"][0], "strategy": "nccl+ddp=100", "time_us": 100.0}
    advice = {
        "framework": "pytorch", "title": "PyTorch", "change": True, "strategy": "nccl+ddp=100",
        "do": "Set bucket_cap_mb=100 (DDP)", "time_us": 100.0, "reason": "",
        "error_us": 10.0, "caveat": "", "more": "61 other packings",
        "today": "PyTorch's defaults (DDP)", "today_strategy": "nccl+ddp", "today_time_us": 150.0,
        "fastest": "bucket_cap_mb=100 (DDP)", "fastest_strategy": "nccl+ddp=100",
        "fastest_time_us": 100.0, "fits": True, "today_fits": True,
    }  # fmt: skip
    page = make_page({**document, "candidates": [row], "advice": [advice]}, Attachments())

    assert page.answer.startswith("Set bucket_cap_mb=100 (DDP): ")
    assert page.answer.endswith("1.50 times as fast as PyTorch's defaults (DDP) (150 us).")
    assert ("Set bucket_cap_mb=100 (DDP)", "1.50 times as fast") == tuple(
        fact.answer for fact in page.facts[:2]
    )

    assert (
        "`simreduce tune FILE --target pytorch` also tries 61 other packings." in page.facts[0].more
    )
    assert "The difference from today is off by less than 10 us with 80%." in page.facts[2].more

    kept = advice | {
        "change": False, "do": "Keep PyTorch's defaults (DDP)", "strategy": "nccl+ddp",
        "time_us": 150.0, "reason": "less than that", "fastest_time_us": 149.7,
    }  # fmt: skip
    row = {**row, "strategy": "nccl+ddp", "time_us": 150.0}
    document = {**document, "recommended": "nccl+ddp", "candidates": [row], "advice": [kept]}
    page = make_page(document, Attachments())
    assert page.answer.endswith("bucket_cap_mb=100 (DDP) would save 0.2 %, less than that.")
    assert ("Keep PyTorch's defaults (DDP)", "nothing to gain") == tuple(
        fact.answer for fact in page.facts[:2]
    )


_MISSING = object()
_WRONG = (None, 0, -1, "", [], {}, "x", [1], [{}], _MISSING)


def _paths(value, path=()):
    """Where each value of a document is, by the keys on the way to it, with any place of a list."""
    inside = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else inside:
        shape = tuple("*" if isinstance(step, int) else step for step in (*path, key))
        yield shape, (*path, key)
        yield from _paths(each, (*path, key))


@contextlib.contextmanager
def _damaged(document, path, value):
    """The document with another value at a path, while it lasts."""
    *outer, key = path
    at = functools.reduce(operator.getitem, outer, document)
    kept = copy.copy(at)
    if value is _MISSING:
        del at[key]
    else:
        at[key] = value
    try:
        yield
    finally:
        at.clear()
        at.extend(kept) if isinstance(at, list) else at.update(kept)


@pytest.mark.slow
def test_a_document_with_one_wrong_value_is_refused_or_has_a_page(found):
    """Whatever the value is: each value of each kind of document in turn, at one place of a list
    after the other. Every tenth page is written.
    """
    made, seen = Counter(), set()
    for kind in documents.NAMES:
        document, places = found[0][kind], {}
        for shape, path in _paths(document):
            places.setdefault(shape, []).append(path)
        other = kind in ("replicas", "placement")
        pages = kind if other else KINDS[document["command"]]
        for shape, paths in places.items():
            if (pages, shape) in seen:
                continue
            seen.add((pages, shape))
            for i, value in enumerate(_WRONG):
                with (
                    contextlib.suppress(InputError),
                    _damaged(document, paths[-1 - i % len(paths)], value),
                ):
                    check_kinds(document, "f")
                    page = make_page(document, Attachments())
                    made[kind] += 1
                    if made.total() % 10 == 0:
                        page_html(page)
    assert made.keys() >= {"run", "bench", "capacity"}  # not all are refused


def test_measured_times_stand_beside_predictions_for_the_same_devices(found):
    """How far off they are, without those that were wrong; and what measuring could not tell."""
    page = make_page(found[0]["measured"], _beside(found))
    [section] = [each for each in page.sections if each.key == "measured"]
    words, chart = section.blocks

    assert "Measured on cpu devices, taken to be host: ring is fastest, 100 us" in page.sure
    assert "at most 10% off" in page.sure
    assert "does not tell apart ring, direct" in words.text
    points, equal = chart.drawn.series
    assert [point[:2] for point in points.points] == [pytest.approx((90e-6, 100e-6))]
    assert all(x == y for x, y, *_ in equal.points)
    assert [row[-2] for row in chart.table.rows] == ["-10%", ""]
    failed = {**found[0]["run"], "measured": None}
    assert "Measuring failed" in page_html(make_page(failed, Attachments()))
    wrong = {**found[0]["measured"], "recommended": None}
    assert make_page(wrong, Attachments()).answer.startswith("No measured step was right")


def test_what_to_paste_is_that_of_every_system():
    """Those with a setting, a command for what is too long, and a folded table of reasons."""
    setup = Setup("dgx1v").but(runtime="nccl")
    exports = export_choice(Choice(setup, load_workload("resnet50"), parse_strategy("nccl+ddp")))
    assert next(each.name for each in exports if not each.reasons) == "pytorch"
    exports = (*exports, Exported("mscclpp", "MSCCL++", {"plan.json": "line\n" * 500}))
    [section] = copy_section(exports, "ddp, nccl+ddp")
    codes = {block.about: block.text for block in section.blocks if isinstance(block, Code)}
    [rows] = [block for block in section.blocks if isinstance(block, Rows)]

    assert "DistributedDataParallel" in codes["PyTorch: simreduce_ddp.py"]
    assert "allreduce" in codes["NCCL: nccl_tuner.csv"]
    long = codes["MSCCL++: plan.json, 500 lines, by"]
    assert long.endswith("mscclpp SCENARIO --algo nccl+ddp --out DIR --method ddp")
    without = [each for each in exports if each.reasons]
    assert rows.folded
    assert [row[0] for row in rows.table.rows] == [each.title for each in without]
    assert all(each.files for each in exports if not each.reasons)


def test_a_system_without_a_setting_is_told_its_fastest_of_those_ranked():
    """By name, with its time; one that has none for any stays without."""
    setup = Setup("dgx1v").but(runtime="nccl")
    others = [parse_strategy(text) for text in ("nccl+fusion", "nccl+ddp=50", "nccl+ddp")]
    choice = Choice(setup, load_workload("vgg16"), others[0])
    exports = export_choice(choice, others)
    by_name = {each.name: each for each in exports}
    [section] = copy_section(exports, "nccl+fusion", {"nccl+ddp=50": "1 ms"})
    codes = {block.about: block.text for block in section.blocks if isinstance(block, Code)}

    assert (by_name["horovod"].instead, by_name["pytorch"].instead) == ("", "nccl+ddp=50")
    assert not by_name["pytorch"].reasons
    assert (
        by_name["pytorch"].files
        == export_choice(dataclasses.replace(choice, strategy=others[1]))[0].files
    )
    words = "PyTorch with nccl+ddp=50, 1 ms"
    assert '"bucket_cap_mb": 50' in codes[f"{words}: simreduce_ddp.py"]


def test_a_second_nic_comes_with_its_own_port(found):
    """One more lane on a network's links that helps with another class alone counts as a NIC."""
    look = copy.deepcopy(found[1]["replicas"])
    only = {**look["changes"][0], "figure": "lanes", "change": "one more on each"}
    alone = {**only, "sort": "nic", "resource": "ib", "saving_share": 0.0}
    joint = {**only, "sort": "together", "resource": "pcie + ib", "saving_share": 0.25}
    look["changes"] = [alone, joint]
    page = make_page(found[0]["replicas"], Attachments(look=look))
    [fact] = [each for each in page.facts if "NIC" in each.question]

    assert fact.answer == "25.0% less time"
    assert "with one more pcie and ib port beside each" in fact.more


def test_what_is_no_document_is_refused():
    """With the nearest kind."""
    with pytest.raises(InputError, match=r"command is 'benhc' \(did you mean 'bench'\?\)"):
        make_page({"command": "benhc"}, Attachments())
    with pytest.raises(InputError, match=r"f\.json: is no JSON document"):
        read_document("{", "f.json")
    with pytest.raises(InputError, match="must be a JSON object"):
        read_document("[1]", "f.json")
    for number in ("NaN", "-Infinity", "1e999", "1" + 400 * "0"):
        with pytest.raises(InputError, match=number):
            read_document(f'{{"command": {number}}}', "f.json")


@pytest.mark.parametrize("kind", documents.NAMES)
def test_a_document_of_each_kind_is_read_with_keys_that_come_later(found, kind):
    """What is written fits, and so does what a later version adds."""
    text = json.dumps({**found[0][kind], "a_later_key": [1]})

    assert read_document(text, "f.json")["a_later_key"] == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": 7}, "strategy must be text"),
        ({"step_time_us": "1"}, "step_time_us must be a number"),
        ({"step_time_us": True}, "step_time_us must be a number"),
        ({"images_per_second": []}, "images_per_second must be a number"),
        ({"consistency": {}}, "consistency must be text"),
        ({"candidates": {}}, "candidates must be a list"),
        ({"candidates": [{"also": [[]]}]}, r"candidates\[0\]\.also\[0\] must be text"),
        ({"buckets": [1]}, r"buckets\[0\] must be an object"),
        ({"buckets": [{"gradients": []}]}, r"buckets\[0\]\.gradients must be a list of at least 1"),
        ({"ranks": -1}, "ranks must be at least 0"),
    ],
)
def test_values_that_no_command_writes_are_named_with_their_places(found, change, words):
    """Before anything is made of the document."""
    text = json.dumps({**found[0]["step"], **change})

    with pytest.raises(InputError, match=f"is no document of simreduce step --json: {words}"):
        read_document(text, "f.json")


def test_every_wrong_value_is_named_in_one_round():
    """Also of maps and pairs."""
    change = {"provenance": [], "ranks": None, "rows": [{"wrong": 0.5}]}

    with pytest.raises(InputError) as refused:
        read_document(json.dumps({**documents.VALIDATE, **change}), "f.json")

    assert ["ranks", "provenance", "rows[0].wrong"] == [
        each.rpartition(": ")[2].split()[0] for each in refused.value.problems
    ]


def test_replicas_that_make_no_gradients_have_a_page(found):
    """Then no part of them is dropped."""
    document = {**found[0]["replicas"], "dropped_share": None}

    assert "dropped" not in " ".join(fact.more for fact in make_page(document, Attachments()).facts)


def test_a_missing_key_is_named_where_a_page_needs_it(found):
    """Of the document, or of one beside it. Others may be missing."""
    run = {key: each for key, each in found[0]["run"].items() if key != "candidates"}
    later = {key: each for key, each in found[0]["run"].items() if key != "scenario"}
    explained = {key: each for key, each in found[0]["explain"].items() if key != "changes"}

    assert make_page(later, Attachments()).answer
    with pytest.raises(InputError, match="f: lacks the key 'candidates' of simreduce run --json"):
        make_page(run, Attachments(), "f")
    with pytest.raises(InputError, match="lacks the key 'changes' of simreduce explain --json"):
        make_page(found[0]["run"], Attachments(explanation=explained))
    with pytest.raises(InputError, match="f: it has no rows"):
        make_page({**found[0]["bench"], "rows": []}, Attachments(), "f")


def test_the_page_of_a_validation_reads_what_the_harness_writes():
    """Each key, of the same kind."""
    theirs, [ours] = outputs()["validate"], READ.records
    read, written = ({key.name: key.kind for key in each.keys} for each in (ours, theirs))

    assert read.keys() <= written.keys()
    rows = {key.name: key.kind.schema for key in written["rows"].records[0].keys}
    for key in read["rows"].records[0].keys:
        assert rows[key.name] == key.kind.schema


def test_rows_of_a_table_need_the_choices_that_the_sweep_varies(found):
    """`table --columns` may have left out what is compared."""
    document = found[0]["sweep"]
    left = "strategy"
    rows = [{key: row[key] for key in row if key != left} for row in document["rows"]]

    with pytest.raises(InputError, match=f"its rows lack {left}: write them without --columns"):
        make_page({**document, "rows": rows}, Attachments())


def test_words_and_lengths_that_no_command_writes_are_named(found):
    text = json.dumps({**found[0]["sweep"], "kind": "rum"})

    with pytest.raises(InputError, match="kind must be `bench` or `run`"):
        read_document(text, "f.json")
    assert [each.words for each in list_of(TEXT, 2).misfits(["a", "b", "c"])] == ["a list of 2"]


def test_an_interval_has_both_ends_or_none(found):
    row = {**found[0]["bench"]["rows"][0], "low_us": 1.0, "high_us": None}
    text = json.dumps({**found[0]["bench"], "rows": [row]})

    with pytest.raises(
        InputError, match=r"rows\[0\]\.high_us must be null exactly where low_us is"
    ):
        read_document(text, "f.json")


@pytest.mark.parametrize("fault", [KeyError("nccl"), TypeError("no text"), IndexError("range")])
def test_our_own_faults_are_not_blamed_on_the_document(found, monkeypatch, fault):
    """They get a traceback."""

    broken = Mock(side_effect=fault)
    monkeypatch.setitem(KINDS, "run", (KINDS["run"][0], broken))

    with pytest.raises(type(fault), match=str(fault)):
        make_page(found[0]["run"], Attachments())


def test_samples_of_a_validation_are_read_line_by_line():
    """Medians of the samples; controls and candidates without samples have no row."""
    run = {"record": "run", "format": 1, "provenance": {"topology": "switch:2"}}
    forecast = {"record": "candidate", "size_bytes": 64, "then_us": None, "predicted_us": 5.0}
    lines = [
        run,
        {**forecast, "id": 0, "algorithm": "ring"},
        {**forecast, "id": 1, "algorithm": "direct"},
        {**forecast, "id": 2, "algorithm": "ring", "then_us": 3.0},
        *({"record": "sample", "id": 0, "round": i, "us": us} for i, us in enumerate([9, 4, 6])),
        {"record": "sample", "id": 2, "round": 0, "us": 1.0},
    ]
    document = read_document("\n".join(map(json.dumps, lines)), "v.jsonl")

    [row] = document["rows"]
    assert (row["algorithm"], row["time_us"], row["low_us"], row["high_us"]) == ("ring", 6, 4, 9)
    page_html(make_page(document, Attachments()))
    for line in lines:
        for path in [path for _, path in _paths(line)]:
            for value in _WRONG:
                with contextlib.suppress(InputError), _damaged(line, path, value):
                    text = "\n".join(map(json.dumps, lines))
                    make_page(read_document(text, "v.jsonl"), Attachments())


@pytest.mark.parametrize("kind", documents.NAMES)
def test_the_first_screen_says_what_goes_wrong_and_what_is_missing(found, kind):
    """A machine with a fault, and a command that was stopped."""
    plain = make_page(found[0][kind], Attachments()).about
    document = {**found[0][kind], "disturbance": "gpu3 1.5 times as slow", "complete": False}
    about = make_page(document, Attachments()).about

    assert "gpu3 1.5 times as slow" not in plain
    assert "Disturbed: gpu3 1.5 times as slow." in about
    if document["command"] != "tune":
        assert about.count(".") > plain.count(".") + 2


SWEPT = {
    "keys": ["nodes", "size", "strategy"],
    "states": {"done": 8},
    "rows": [
        {"nodes": nodes, "size": size, "strategy": name, "state": "done", "reason": "",
         "seconds": nodes * size * factor, "low": None, "high": None}
        for nodes in (1, 2) for size in (2**20, 2**21)
        for name, factor in (("ring", 2e-9 if size > 2**20 and nodes > 1 else 1e-9),
                             ("nccl", 1.5e-9))
    ],
}  # fmt: skip


def test_a_sweep_says_which_choice_wins_how_often():
    """And by how much in the case that takes longest, with sizes in units."""
    page = make_page({**documents.SWEEP, **SWEPT}, Attachments())

    assert page.answer == (
        "ring is the fastest in 3 of 4 cases of nodes and size (nccl in 1). With nodes 2, size "
        "2.097 MB, nccl takes 6.291 ms, 1.33 times as fast as ring."
    )
    assert page.facts[0].answer == "ring"


def test_a_sweep_of_jobs_says_where_they_lose_least():
    """By their slowdown, also in its charts."""
    page = make_page(documents.SWEEP_OF_JOBS, Attachments())
    chart = page.sections[0].blocks[0]

    assert page.answer == (
        "Jobs lose least with oversubscription 1: a takes 1.00 times as long as alone; and most"
        " with oversubscription 3: c takes 3.00 times as long as alone."
    )
    assert page.facts[0].answer == "oversubscription 1"
    assert "up to 3 times the slowdown" in page.facts[1].more
    assert chart.drawn.y.label == "slowdown"
    assert [point[:2] for point in chart.drawn.series[0].points] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_an_interval_of_steps_leaves_out_computing():
    """In a sweep: it is of communication. Of collectives it leaves out nothing."""
    words = "if GPUs compute as fast as the question says."
    for kind, said in (("bench", False), ("step", True)):
        page = make_page({**documents.SWEEP, "kind": kind}, Attachments())
        sure = next(fact for fact in page.facts if fact.question == "How sure is that?")

        assert page.sure.endswith(words) is said
        assert sure.more.endswith(words) is said


def test_the_error_of_a_capacity_plan_is_said_in_percent(found):
    """How far off its step may be; less than a thousandth is no range."""
    measured = {**found[0]["capacity"], "at_rates": []}
    choice = measured["choice"]
    near = {**choice, "simulated_s": 0.1, "step_low_s": 0.09995, "step_high_s": 0.10005}
    page = make_page(measured, Attachments())

    assert "within -10.0% to +20.0% of the prediction" in page.sure
    page = make_page({**measured, "choice": near}, Attachments())
    assert "within 0.1% of the prediction" in page.sure


def test_a_capacity_plan_names_one_configuration_everywhere():
    """In the headline and on the first card; changes that nobody asked for are not denied."""
    asked = {**documents.CAPACITY, "sensitivity": [], "sensitivity_asked": False}
    page = make_page(asked, Attachments())
    first, *_, last = page.facts

    assert page.answer.startswith("Rent 1 p4: 10 USD/h, 10 USD per 1M samples; the run takes 1 h")
    assert ("What should I rent?", "1 p4") == (first.question, first.answer)
    assert "not asked" == last.answer
    assert "not nearby" == make_page(
        {**asked, "sensitivity_asked": True, "sensitivity": [
            {**documents.CAPACITY["sensitivity"][0], "above": None}]}, Attachments()
    ).facts[-1].answer  # fmt: skip


def test_a_capacity_plan_at_an_assumed_rate_has_no_interval():
    """But what it costs at other rates, on its card and in the sentence below the headline."""
    page = make_page(documents.CAPACITY, Attachments())

    assert "400 TFLOP/s a GPU is assumed, not measured. " in page.sure
    assert (
        "At 300 TFLOP/s a GPU at most 13.33 USD per 1M samples, so that it would miss the time. "
        in page.sure
    )
    assert "8 USD to 13.33 USD per 1M samples" == page.facts[2].answer


def test_a_capacity_plan_without_a_choice_has_a_page():
    """The answer says why there is none, and nothing is said of its error."""
    document = {**documents.CAPACITY, "choice": None, "binds": [], "sensitivity": []}
    page = make_page(document, Attachments())

    assert page.answer.startswith("No option")
    assert "Note: prices age." == page.sure
    assert () == page.facts
    assert "prices age" in page_html(page)


def test_a_step_that_takes_no_time_has_a_page(tmp_path):
    """On an ideal machine whose compute takes none: a rate without a number."""
    path = tmp_path / "at-once.toml"
    path.write_text(
        'topology = "switch:1"\nworkload = "alexnet"\nstrategies = ["ring"]\nruntime = "ideal"\n'
        '[step]\nbatch = 1\ntime = "0 s"\n'
    )
    document = json.loads(json.dumps(step_document(rank_steps(load_scenario(str(path))))))

    assert document["images_per_second"] is None
    assert "inf samples/s" in page_html(make_page(document, Attachments(), "it"))


def test_a_long_order_of_nodes_is_cut(found):
    document = {**found[0]["placement"], "advised": [f"n{i}" for i in range(0, 200, 2)]}
    answer = make_page(document, _beside(found)).facts[0].answer

    assert answer.startswith("n0,n2,n4,")
    assert answer.endswith("...")
    assert len(answer) == 96


def test_pictures_say_where_the_ranks_of_orders_and_jobs_are(found):
    """One panel each, its nodes by the switches they share; a ring goes from each to the next."""
    for kind, panels in (("placement", {"given", "best"}), ("jobs", {"a", "b"})):
        page = make_page(found[0][kind], _beside(found))
        [places] = [each for each in page.sections if each.key == "places"]
        drawing = places.blocks[0].drawing
        marks = [shape for shape in drawing.shapes if getattr(shape, "kind", "") == "pattern"]
        assert {mark.title for mark in marks} == panels
    texts = {text.text for mark in marks for text in mark.shapes if hasattr(text, "text")}
    assert {"A.0", "A.1", "B.2", "B.3"} <= texts
    assert page.answer == found[0]["jobs"]["answer"]
