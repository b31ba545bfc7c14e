"""The state of the page, as its URL has it.

A view becomes a scenario, so the page asks nothing that a file could not. Names are checked against
what simreduce ships and what the command line named before anything is loaded: no text of a URL is
ever used as a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from simreduce import topology, workload
from simreduce.engine import RUNTIMES, calibrate
from simreduce.engine.setup import BY_STRATEGY
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import Faults
from simreduce.files.textfiles import flatten
from simreduce.planners.layouts import Layout
from simreduce.planners.nccl import SETTINGS
from simreduce.planners.packing import PACKERS
from simreduce.planners.strategy import ALL, Strategy, parse_strategy, split_strategies
from simreduce.study.job_files import JobsQuestion, build_jobs, elsewhere
from simreduce.study.scenario import (
    Meshes,
    Scenario,
    beside,
    build_meshes,
    build_scenario,
    read_scenario_file,
    tables_of,
)
from simreduce.study.tune.candidates import candidates
from simreduce.topology import Topology, load_topology
from simreduce.topology.generators import GENERATORS
from simreduce.topology.generators.inline import split_inline
from simreduce.topology.loader import nearest_name
from simreduce.training.mesh.pipeline import NAMES as SCHEDULES
from simreduce.workload.decoder import DECODERS

USUAL = "usual"
"""Instead of names of algorithms: the algorithms of `_USUAL` that suit the machine."""
_USUAL = (
    "nccl", "collective", "xring", "psgpu", "hierarchical_copy", "copy_to_cpu", "ring",
    "halving_doubling", "direct", "nccl/xring", "ring/ring", "ring/halving_doubling",
)  # fmt: skip
"""Algorithms that plan at once: none searches for the best trees, rings or chunks."""
NCCL = tuple(each.key for each in SETTINGS.fields if each.key != "tuner")
"""Settings of NCCL that a view may have; a tuner is a file."""
_LONGEST = 4096
"""Characters of a view."""
_MOST = 64
"""Links that are slow or cut."""
_QUERY = re.compile(r"http://|\?|[A-Za-z_]+=")
"""How a URL begins, or its query: what else there is begins with a machine."""
_INLINE = re.compile(r"[A-Za-z0-9_.:,=+-]{1,200}")

Files = Mapping[str, str]
"""Paths of the files of the command line, machines and jobs, by the names that views use for them.
"""


@dataclass(frozen=True, slots=True)
class View:
    """A question on the page, as texts. An empty text means the default.

    `size` is of one tensor, `model` a shipped model instead. `algo` are strategies without their
    packing, or USUAL, or ALL; `packing` is the text behind the +. `links` has `gpu0<>gpu3` and
    its factor, 0 for a link that is cut. `look` is the strategy to look at closely. With a `mesh`,
    the page asks which mesh to train a model on, and what goes with it is as in `[step]`. With
    `jobs`, the name of their file, it asks what these lose beside each other, on the file's machine
    if `machine` is empty.
    """

    machine: str = "dgx1v"
    jobs: str = ""
    size: str = "64MiB"
    model: str = ""
    algo: str = USUAL
    packing: str = ""
    look: str = ""
    mesh: str = ""
    global_batch: str = ""
    micro_batch: str = ""
    recompute: str = ""
    schedule: str = ""
    runtime: str = ""
    calibration: str = ""
    nccl: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def chooses(self) -> bool:
        """Whether the algorithms are not named but those that suit the machine."""
        return self.algo in (USUAL, ALL)

    @property
    def query(self) -> str:
        """The view as the query of a URL, without what is as usual."""
        return urlencode(list(self._pairs()), safe=":,/<>=")

    def _pairs(self) -> Iterator[tuple[str, str]]:
        usual = View()
        for name in _KEYS:
            value = getattr(self, name)
            if value and (value != getattr(usual, name) or name == "machine"):
                yield name, value
        yield from self.nccl.items()
        yield from (("link", f"{name}={factor}") for name, factor in self.links.items())

    def table(self) -> dict[str, Any]:
        """The scenario as a table, without the strategies where they depend on the machine."""
        table: dict[str, Any] = {
            "topology": self.machine,
            "workload": self.model or f"bytes:{self.size}",
        }
        if self.mesh:
            step = {key: _number(getattr(self, key)) for key in _OF_STEPS if getattr(self, key)}
            table["step"] = step | (
                {"pipeline": {"schedule": self.schedule}} if self.schedule else {}
            )
        elif not self.chooses or self.packing:
            table["strategies"] = self._strategies() or [ALL]
        return table | self._settings()

    def _settings(self) -> dict[str, Any]:
        """What all questions may have, as a table."""
        found: dict[str, Any] = {
            key: value for key in ("runtime", "calibration") if (value := getattr(self, key))
        }
        for key, table in (("nccl", self.nccl), ("link_factors", self.links)):
            if table:
                found[key] = {name: _number(value) for name, value in table.items()}
        return found

    def jobs_table(self, files: Files) -> tuple[Path, dict[str, Any]]:
        """The file of the jobs, and its tables with the settings of the view. What the file says of
        its own machine does not hold for another.
        """
        path, table = read_scenario_file(files[self.jobs])
        if self.machine:
            table = elsewhere(table, files.get(self.machine, self.machine))
        for key, value in self._settings().items():
            old = table.get(key)
            table[key] = {**old, **value} if isinstance(old, dict) else value
        return path, table

    def _strategies(self) -> list[str]:
        if self.chooses:
            return []
        return [self._packed(each.strip()) for each in split_strategies(self.algo)]

    def _packed(self, spec: str) -> str:
        return f"{spec}+{self.packing}" if self.packing and "+" not in spec else spec

    def whole(self, files: Files) -> Topology:
        """The machine with all of its links."""
        if not self.jobs:
            return load_topology(files.get(self.machine, self.machine))
        path, table = self.jobs_table(files)
        overrides = flatten(table.get("topology_overrides") or {})
        return load_topology(beside(path, table.get("topology", "")), overrides)

    def ask(self, files: Files) -> Scenario | Meshes | JobsQuestion:
        """The question. InputError lists every fault, each behind its key."""
        if self.jobs:
            return self.jobs_question(files)
        return self.meshes(files) if self.mesh else self.scenario(files)

    def jobs_question(self, files: Files) -> JobsQuestion:
        """The jobs. InputError lists every fault, those of the view behind its keys."""
        own = ("runtime", "runtime"), ("calibration", "calibration"), ("machine", "topology")
        options = {key: name for name, key in own if getattr(self, name)}
        options |= {"link_factors": "link"} if self.links else {}
        options |= {f"nccl.{name}": name for name in self.nccl}
        return build_jobs(*self.jobs_table(files), options=options)

    def meshes(self, files: Files) -> Meshes:
        """The scenario about meshes. InputError lists every fault, each behind its key."""
        table = {**self.table(), "topology": files.get(self.machine, self.machine)}
        own = {f"step.{key}": key for key in _OF_STEPS}
        options = {"topology": "machine", "workload": "model", "link_factors": "link", **own}
        return build_meshes(Path("view"), table, Faults("view", options=options))

    def scenario(self, files: Files) -> Scenario:
        """The scenario. InputError lists every fault, each behind the key of the view."""
        table = {**self.table(), "topology": files.get(self.machine, self.machine)}
        options = {
            "topology": "machine",
            "workload": "model" if self.model else "size",
            "strategies": "algo",
            "link_factors": "link",
        } | {f"nccl.{name}": name for name in NCCL}
        keys = {"runtime": "runtime", "calibration": "calibration"}
        found = build_scenario(Path("view"), table, options=options | keys)
        if self.algo == USUAL or (self.algo == ALL and self.packing):
            chosen = self._for(found.setup.layout)
            found = replace(found, strategies=tuple(chosen))
        return found

    def _for(self, layout: Layout) -> list[Strategy]:
        """The usual algorithms, or all, that this layout has a use for, with the packing."""
        specs = dict.fromkeys(each.spec for each in candidates(layout))
        chosen = [s for s in specs if self.algo == ALL or s in _USUAL]
        return [parse_strategy(self._packed(spec)) for spec in chosen]


_OF_STEPS = ("mesh", "global_batch", "micro_batch", "recompute")
_KEYS = tuple(f.name for f in fields(View) if f.name not in ("nccl", "links"))


def _number(text: str) -> object:
    """The number that a text is, or the text."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def read_view(text: str, files: Files) -> View:
    """The view of a URL, of its query, or of the name of a machine alone, such as
    `dgx-h100x8,fabric=rail_optimised`. InputError lists every fault that can be seen without
    loading anything.
    """
    query = urlsplit(text).query if text.startswith("http://") else text.removeprefix("?")
    if len(query) > _LONGEST:
        raise InputError(f"a view of {len(query)} characters; at most {_LONGEST}")
    if query and not _QUERY.match(text):
        _check_machine(text, files)
        return View(text)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InputError(f"the view {quote(text)} is no query of a URL: {error}") from None
    faults = Faults()
    values: dict[str, str] = {}
    links: dict[str, str] = {}
    for key, value in pairs:
        if key == "link":
            name, _, factor = value.rpartition("=")
            if not name:
                faults.add("link", f"{quote(value)} must be LINK=FACTOR, such as gpu0<>gpu3=0.5")
            links[name] = factor
        elif key not in (*_KEYS, *NCCL):
            faults.unknown("", [key], [*_KEYS, *NCCL, "link"])
        elif key in values:
            faults.add(key, "is given twice")
        elif value:
            values[key] = value
    if len(links) > _MOST:
        faults.add("link", f"{len(links)} links are changed; at most {_MOST}")
    nccl = {key: values.pop(key) for key in NCCL if key in values}
    if "jobs" in values:
        values.setdefault("machine", "")
    view = View(nccl=nccl, links=links, **{k: v for k, v in values.items() if k in _KEYS})
    _check_names(view, files, faults)
    faults.raise_any()
    return view


def _check_names(view: View, files: Files, faults: Faults) -> None:
    """Note what is neither shipped, nor named on the command line, nor made of such names."""
    if view.jobs:
        _check_jobs(view, files, faults)
    if view.machine or not view.jobs:
        faults.attempt("machine", _check_machine, view.machine, files)
    for key, value, known in (
        ("model", view.model, workload.shipped()),
        ("calibration", view.calibration, calibrate.shipped()),
        ("runtime", view.runtime, [*RUNTIMES, BY_STRATEGY.name]),
    ):
        if value and value not in known:
            near = did_you_mean(value, known) or f"; there are {', '.join(known)}"
            faults.add(key, f"no {key} {quote(value)}{near}")
    if view.mesh:
        _check_mesh(view, faults)
    packer = re.split(r"[=+]", view.packing)[0]
    if view.packing and packer not in PACKERS:
        near = did_you_mean(packer, PACKERS) or f"; there are {', '.join(PACKERS)}"
        faults.add("packing", f"no packer {quote(packer)}{near}")
    if not re.fullmatch(r"[A-Za-z0-9.]{1,24}", view.size):
        faults.add("size", f"{quote(view.size)} is no size, such as 64MiB")


def of_jobs(files: Files) -> list[str]:
    """The names of the files that have jobs."""
    return [name for name, path in files.items() if "job" in tables_of(path)]


def _check_jobs(view: View, files: Files, faults: Faults) -> None:
    """Note jobs that the command line did not name, and what has no use beside them."""
    known = of_jobs(files)
    if view.jobs not in known:
        near = did_you_mean(view.jobs, known) or f"; there are {', '.join(known) or 'none'}"
        faults.add("jobs", f"no file of jobs {quote(view.jobs)}{near}; name it behind serve")
    for key in _KEYS:
        own = ("machine", "jobs", "runtime", "calibration")
        if key not in own and getattr(view, key) != getattr(View(), key):
            faults.add(key, "the file of the jobs says what they repeat")


def _check_mesh(view: View, faults: Faults) -> None:
    """Note what a mesh lacks, and what has no use beside it. A schedule here is no file."""
    if not view.model:
        faults.add("model", f"missing; a mesh trains one, such as {next(iter(DECODERS))}")
    if not view.global_batch:
        faults.add("global_batch", "missing; it says how many sequences a step has")
    if view.schedule and view.schedule not in SCHEDULES:
        near = did_you_mean(view.schedule, SCHEDULES) or f"; there are {', '.join(SCHEDULES)}"
        faults.add("schedule", f"no schedule {quote(view.schedule)}{near}")
    for key in ("algo", "packing"):
        if getattr(view, key) != getattr(View(), key):
            faults.add(key, "NCCL chooses how the collectives of a mesh run")


def _check_machine(text: str, files: Files) -> None:
    """InputError unless `text` is a machine that needs no file of a user."""
    names = [*files, *(name for name, _ in topology.shipped())]
    if text in names:
        return
    known = False
    if _INLINE.fullmatch(text):
        inline, copies = split_inline(text, ":"), split_inline(text, "x")
        known = (inline is not None and inline.name in GENERATORS) or (
            copies is not None and copies.name in names and copies.name not in files
        )
    if not known:
        head = text.partition(",")[0]
        several = re.fullmatch(r"(.+)x[0-9]+", head)
        near = nearest_name(head, [*files]) or (nearest_name(several[1]) if several else "")
        ways = "; `simreduce topo list` names them; or several, dgx-a100x4, or a shape, switch:8"
        raise InputError(f"no machine {quote(text)}{near}{ways}")
