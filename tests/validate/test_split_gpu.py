"""Constants of a real GPU in parts: fitted to its micro-plans, they predict its strategies."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from simreduce_validate import calibrate as command
from simreduce_validate.calibrating import Cores, assemble, design
from simreduce_validate.calibrating.recorded import read_session, try_constants
from simreduce_validate.calibrating.session import all_micros
from simreduce_validate.campaign import Campaign
from simreduce_validate.measuring import read_record

from simreduce.app.cli import main
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.calibrate.fit import PULL, find_slopes, weights
from simreduce.errors import InputError
from simreduce.study.tune.sizes import tensor
from tests.validate.devices import devices

MACHINE = "full:4,bandwidth=2400GB/s"
TABLE = Path(__file__).parent / "h200_in_4_parts.csv"
"""Medians of one H200; what was measured is in its head."""
HOST = {
    "cpu": "a CPU", "cores": 16, "usable_cores": 16, "gpus": "NVIDIA H200", "workers": [],
}  # fmt: skip
SETTINGS = {"topology": MACHINE, "backend": "gpu", "route": "session", "chained": 1}


VALUES = {
    "step": 95.5e-6, "issue.device": 15e-6, "issue.copy": 14.1e-6, "issue.add": 4.77e-6,
    "issue.input": 3e-6, "links.cable.bandwidth": 406e9, "links.cable:d2h.bandwidth": 47.8e9,
    "links.cable:h2d.bandwidth": 6.76e9, "links.cable.latency": 17.7e-6,
    "links.cable:d2h.latency": 27.3e-6, "links.cable:h2d.latency": 2.39e-6,
}  # fmt: skip
"""What the fit finds, for tests that do not wait for it."""
STORED = assemble(Calibration("stored"), VALUES)


def rows():
    lines = TABLE.read_text("utf-8").splitlines()
    return list(csv.DictReader(lines[2:]))


def record(path, group, backend="gpu", rows_of=rows, **settings):
    """The rows of a group as a file of samples, which has one for each."""
    settings = SETTINGS | {"backend": backend} | settings
    where = devices(settings["topology"], backend="gpu")
    micros = {(m.name, m.nbytes): m.plan.digest for m in all_micros(design(where, Cores(1)))}
    campaign = Campaign(where, where.setup(NOMINAL))
    about = {"started": "2026-11-28", "hardware": HOST, "versions": {"tensorflow": "2.21.0"}}
    about["settings"] = settings
    documents = [{"record": "run", "format": 1, "provenance": about}]
    for number, row in enumerate(each for each in rows_of() if each["group"] == group):
        name, nbytes = row["plan"], int(row["bytes"])
        digest = micros.get((name, nbytes))
        if group != "fit":
            digest = campaign.compile(name, tensor(nbytes, 0)).digest
        documents += [
            {"record": "candidate", "id": number, "algorithm": name, "size_bytes": nbytes,
             "count": nbytes // 4, "type": "float32", "redop": "sum", "plan": digest or "unknown",
             "predicted_us": None},
            {"record": "sample", "id": number, "round": 0, "us": float(row["us"])},
            {"record": "checked", "id": number, "faults": []},
        ]  # fmt: skip
    documents.append({"record": "end"})
    path.write_text("".join(json.dumps(each) + "\n" for each in documents), "utf-8")
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    return read_session([record(folder / group, group) for group in ("fit", "held-out", "all")])


@pytest.fixture
def session(found):
    return found[0]


def check_figures(timings, most_median, most_p90, fewest, fewest_pairs):
    """Pairs further apart than medians of few rounds scatter are in order."""
    errors = np.abs([timing.error for timing in timings])
    pairs = [
        (a, b)
        for a, b in combinations(timings, 2)
        if a.case.nbytes == b.case.nbytes
        and not 1 / 1.3 < a.measured.median / b.measured.median < 1.3
    ]
    right = [
        (a.measured.median - b.measured.median) * (a.predicted - b.predicted) > 0 for a, b in pairs
    ]

    assert len(errors) > fewest
    assert np.median(errors) < most_median
    assert np.quantile(errors, 0.9) < most_p90
    assert len(pairs) > fewest_pairs
    assert np.mean(right) > 0.95


@pytest.mark.slow
def test_strategies_that_were_not_in_the_fit_are_predicted(session):
    check_figures(session.tried, 0.12, 0.30, 100, 500)


@pytest.mark.thorough
def test_a_strategy_is_predicted_by_constants_fitted_to_all_others(tmp_path):
    """And to the micro-plans: a step of the robust fit from the stored constants, then one for
    each strategy that is left out.
    """
    plans, medians, owners = [], [], []
    others = tried(record(tmp_path / "a", "held-out"), record(tmp_path / "b", "all"))
    own = read_record(record(tmp_path / "c", "fit"))
    where = devices(MACHINE, backend="gpu")
    known = {micro.plan.digest: micro.plan for micro in all_micros(design(where, Cores(1)))}
    for forecast, seconds in zip(own.forecasts, own.seconds, strict=True):
        if forecast.plan in known:
            plans.append(known[forecast.plan])
            medians.append(float(np.median(seconds)))
            owners.append("")
    for timing in others:
        plans.append(timing.case.plan)
        medians.append(timing.measured.median)
        owners.append(timing.case.algorithm)
    names, begin = list(VALUES), np.log(list(VALUES.values()))

    def residuals(logs):
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        setup = where.setup(assemble(Calibration("f"), values))
        return np.log([setup.find_seconds(plan) for plan in plans]) - np.log(medians)

    def step(logs, kept):
        off, slopes = at[logs.tobytes()]
        weighted = slopes.T * (weights(off) * kept)
        pull = np.eye(len(logs)) * (PULL / np.log(10)) ** 2
        wanted = -weighted @ off - pull @ (logs - begin)
        return logs + np.clip(np.linalg.solve(weighted @ slopes + pull, wanted), -0.7, 0.7)

    at = {begin.tobytes(): (residuals(begin), find_slopes(residuals, begin))}
    middle = step(begin, np.ones(len(plans)))
    at[middle.tobytes()] = residuals(middle), find_slopes(residuals, middle)
    left_out = {}
    for name in {*owners} - {""}:
        mine = np.array(owners) == name
        found = residuals(step(middle, ~mine))
        left_out |= {i: found[i] + np.log(medians[i]) for i in np.flatnonzero(mine)}
    first = len(plans) - len(others)
    check_figures(
        [
            replace(each, case=replace(each.case, predicted=float(np.exp(left_out[first + i]))))
            for i, each in enumerate(others)
        ],
        0.12, 0.30, 100, 500,
    )  # fmt: skip


def test_stored_constants_predict_what_was_held_out(tmp_path):
    """Without the fit: 8 strategies of 16 KiB to 4 MiB."""
    check_figures(tried(record(tmp_path / "x.jsonl", "held-out")), 0.12, 0.30, 20, 20)


@pytest.mark.slow
def test_the_fit_finds_the_stored_constants(session):
    assert dict(VALUES) == pytest.approx(
        {name: session.fit.values[name] for name in VALUES}, rel=0.05
    )


@pytest.mark.slow
def test_micro_plans_tell_issuing_from_latency(session):
    """Eight copies at once take far less than a chain of sixteen, of which each waits for that
    before. A copy costs its host more than a sum, which costs more than to read a value.
    """
    found = session.fit.values
    fit = {timing.case.algorithm: timing for timing in session.timings if timing.case.nbytes == 4}
    names = [timing.case.algorithm for timing in session.timings]
    off = dict(zip(names, np.expm1(session.fit.residuals), strict=True))

    assert 10e-6 < found["issue.copy"] < 22e-6
    assert found["issue.copy"] > found["issue.add"] > found["issue.input"] > 1e-6
    assert 10e-6 < found["links.cable.latency"] < 30e-6
    assert all(abs(off[name]) < 0.1 for name in fit if " times " in name or "hops" in name)


@pytest.mark.slow
def test_the_ways_to_the_host_and_back_differ_and_are_no_guess(session):
    """6.5 GB/s from memory that is not pinned: far from what the machine was taken for."""
    found, vague = session.fit.values, session.fit.vague

    assert found["links.cable:h2d.bandwidth"] == pytest.approx(6.8e9, rel=0.2)
    assert found["links.cable:d2h.bandwidth"] == pytest.approx(48e9, rel=0.2)
    assert not [name for name in vague if name.endswith("bandwidth")]
    assert (
        "nothing that was measured depends on it; issue.copy stands for it"
        == vague["issue.message"]
    )


@pytest.mark.slow
def test_what_the_samples_hardly_tell_keeps_its_usual_value(session):
    """A device's share and a read's. The others are then sure: within 20 %, not 80 %."""
    found, vague, errors = session.fit.values, session.fit.vague, session.fit.errors

    for name, usual in (("issue.device", 15e-6), ("issue.input", 3e-6)):
        assert usual == found[name]
        assert vague[name].endswith("so it keeps its usual value")
    assert all(errors[n] < 0.2 * found[n] for n in ("issue.copy", "issue.add", "step"))


@pytest.mark.slow
def test_samples_are_fitted_again_by_a_command(found, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(command, "read_session", lambda files: asked.append(files) or found)
    out = tmp_path / "again.toml"
    files = ["--from-samples", "a.jsonl", "b.jsonl"]
    monkeypatch.setattr(sys, "argv", ["simreduce calibrate", *files, "--out", str(out)])
    with pytest.raises(SystemExit) as done:
        main(command.calibrate)

    assert not done.value.code
    assert [[Path("a.jsonl"), Path("b.jsonl")]] == asked
    assert f"of {len(found[0].tried)} predictions" in capsys.readouterr().out
    calibration = load_calibration(str(out))
    assert {"device", "copy", "add", "input"} == set(calibration.issue)
    assert calibration.provenance["hardware"].endswith("NVIDIA H200")


@pytest.mark.parametrize(
    ("group", "backend", "words"),
    [("all", "gpu", "has no micro-plan"), ("fit", "shaped", "do not say what its links carry")],
)
def test_other_files_are_no_samples_of_a_fit(group, backend, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read_session([record(tmp_path / "other.jsonl", group, backend)])


def tried(*files, constants=STORED):
    return try_constants(constants, devices(MACHINE, backend="gpu"), files)


def some_rows():
    """Made-up times."""
    return [
        {"group": "held-out", "plan": name, "bytes": nbytes, "us": "300"}
        for name in ("ring", "pscpu")
        for nbytes in ("16384", "1048576")
    ]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_constants_of_4_parts_are_tried_on_as_many_as_a_file_has(parts, tmp_path):
    machine = f"full:{parts},bandwidth=2400GB/s"
    file = record(tmp_path / "x.jsonl", "held-out", rows_of=some_rows, topology=machine)
    where = devices(machine, backend="gpu")
    setup = where.setup(STORED)
    plans = [setup.compile(row["plan"], tensor(int(row["bytes"]), 0)) for row in some_rows()]
    found = tried(file)

    assert [plan.digest for plan in plans] == [timing.case.plan.digest for timing in found]
    assert [setup.find_seconds(plan) for plan in plans] == [timing.predicted for timing in found]
    assert {parts + 1} == {len(timing.case.plan.devices) for timing in found}  # and their host


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"backend": "inproc"}, "--backend inproc, the first file with gpu"),
     ({"route": "function"}, "--route function, the first file with session")],
)  # fmt: skip
def test_files_of_other_routes_and_backends_are_refused_by_name(settings, words, tmp_path):
    file = record(tmp_path / "x.jsonl", "held-out", rows_of=some_rows, **settings)
    with pytest.raises(InputError, match=f"x.jsonl: .*{words}"):
        tried(file)


def edited(path, change):
    """A small file whose documents `change` may alter."""
    file = record(path, "held-out", rows_of=some_rows)
    documents = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    change(documents)
    file.write_text("".join(json.dumps(each) + "\n" for each in documents), "utf-8")
    return file


def test_a_plan_that_is_not_the_one_that_was_timed_is_refused_by_name(tmp_path):
    """Also one of 4 parts where the file says 8."""

    def of_8(documents):
        documents[0]["provenance"]["settings"]["topology"] = "full:8,bandwidth=2400GB/s"

    words = "x.jsonl: ring of 16384 bytes: the plan that was timed is .*, on full:8,.* it is "
    with pytest.raises(InputError, match=words):
        tried(edited(tmp_path / "x.jsonl", of_8))


@pytest.mark.parametrize(
    "key",
    ["hardware.gpus", "hardware.workers", "settings.topology", "settings.route",
     "settings.backend", "settings.chained"],
)  # fmt: skip
def test_a_key_that_is_missing_is_named_with_its_file(key, tmp_path):
    def without(documents):
        group, name = key.split(".")
        del documents[0]["provenance"][group][name]

    file = edited(tmp_path / "x.jsonl", without)
    for read in (tried, lambda file: read_session([file])):
        with pytest.raises(InputError) as refused:
            read(file)
        assert (
            f"{file}: provenance.{key}: is missing, or no such value",
        ) == refused.value.problems


def test_an_empty_provenance_is_refused_with_every_key(tmp_path):
    file = tmp_path / "x.jsonl"
    for run in ({}, {"provenance": {}}):
        file.write_text(json.dumps({"record": "run", "format": 1, **run}) + "\n", "utf-8")
        with pytest.raises(InputError, match="provenance") as refused:
            read_session([file])
        assert all(str(file) in problem for problem in refused.value.problems)
    assert len(refused.value.problems) > 5


def test_a_machine_or_route_that_is_unknown_is_named_with_its_file(tmp_path):
    def unknown(documents):
        documents[0]["provenance"]["settings"] |= {"topology": "full:many", "route": "sesion"}

    file = edited(tmp_path / "x.jsonl", unknown)
    with pytest.raises(InputError) as refused:
        tried(file)
    assert all(problem.startswith(f"{file}: ") for problem in refused.value.problems)
    assert "'sesion'" in str(refused.value)
