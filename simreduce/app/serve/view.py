"""The state of the page, as its URL has it.

A view becomes a scenario, so the page asks nothing that a file could not. Names are checked against
what simreduce ships and what the command line named before anything is loaded: no text of a URL is
ever used as a path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from simreduce import topology
from simreduce.engine import RUNTIMES, calibrate
from simreduce.engine.setup import BY_STRATEGY
from simreduce.errors import InputError, near_or_all, quote
from simreduce.files import flatten
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import Layout
from simreduce.planners.nccl import SETTINGS
from simreduce.planners.packing import PACKERS
from simreduce.planners.strategy import ALL, Strategy, parse_strategy, split_strategies
from simreduce.study.job_files import JobsQuestion, build_jobs, elsewhere
from simreduce.study.scenario import Meshes, Scenario
from simreduce.study.scenario_files import (
    beside,
    build_meshes,
    build_scenario,
    read_scenario_file,
    tables_of,
)
from simreduce.study.tune.rank import candidates
from simreduce.topology import Topology, load_topology
from simreduce.topology.generators import GENERATORS
from simreduce.topology.generators.inline import split_inline
from simreduce.topology.loader import nearest_name
from simreduce.training.mesh.pipeline import NAMES as SCHEDULES
from simreduce.workload.decoder import DECODERS
from simreduce.workload.loader import shipped

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

    def table(self, files: Files) -> dict[str, Any]:
        """The scenario as a table, without the strategies where they depend on the machine."""
        table: dict[str, Any] = {
            "topology": files.get(self.machine, self.machine),
            "workload": self.model or f"bytes:{self.size}",
        }
        if self.mesh:
            schedule = {"pipeline": {"schedule": self.schedule}} if self.schedule else {}
            step = {key: _number(getattr(self, key)) for key in _OF_STEPS if getattr(self, key)}
            table["step"] = step | schedule
        elif not self.chooses or self.packing:
            texts = [] if self.chooses else split_strategies(self.algo)
            table["strategies"] = [self._packed(each.strip()) for each in texts] or [ALL]
        return table | self._settings()

    def _settings(self) -> dict[str, Any]:
        """What all questions may have, as a table."""
        named = {"runtime": self.runtime, "calibration": self.calibration}
        found = {
            key: {name: _number(value) for name, value in table.items()}
            for key, table in {"nccl": self.nccl, "link_factors": self.links}.items()
        }
        return {key: value for key, value in {**named, **found}.items() if value}

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
            return build_jobs(*self.jobs_table(files), options=self._names)
        if self.mesh:
            faults = Faults("view", options=self._names)
            return build_meshes(Path("view"), self.table(files), faults)
        found = build_scenario(Path("view"), self.table(files), options=self._names)
        if self.algo == USUAL or (self.algo == ALL and self.packing):
            found = replace(found, strategies=tuple(self._for(found.setup.layout)))
        return found

    @property
    def _names(self) -> dict[str, str]:
        """The keys of the view by those of the scenario, or of the jobs' file, that they give."""
        own = {"topology": "machine", "runtime": "runtime", "calibration": "calibration"}
        found = {place: name for place, name in own.items() if getattr(self, name)}
        found |= {"link_factors": "link"} if self.links else {}
        found |= {f"nccl.{name}": name for name in self.nccl}
        if self.jobs:
            return found
        found |= {"workload": "model" if self.model else "size", "strategies": "algo"}
        return found | {f"step.{name}": name for name in _OF_STEPS}

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
            words = f"{quote(value)} must be LINK=FACTOR, such as gpu0<>gpu3=0.5"
            faults.check(name, "link", words)
            links[name] = factor
        elif key not in (*_KEYS, *NCCL):
            faults.unknown("", [key], [*_KEYS, *NCCL, "link"])
        elif key in values:
            faults.add(key, "is given twice")
        elif value:
            values[key] = value
    faults.check(len(links) <= _MOST, "link", f"{len(links)} links are changed; at most {_MOST}")
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
    _check_known(faults, "model", "model", view.model, shipped())
    _check_known(faults, "calibration", "calibration", view.calibration, calibrate.shipped())
    _check_known(faults, "runtime", "runtime", view.runtime, [*RUNTIMES, BY_STRATEGY.name])
    _check_known(faults, "packing", "packer", re.split(r"[=+]", view.packing)[0], PACKERS)
    if view.mesh:
        _check_mesh(view, faults)
    size = re.fullmatch(r"[A-Za-z0-9.]{1,24}", view.size)
    faults.check(size, "size", f"{quote(view.size)} is no size, such as 64MiB")


def _check_known(
    faults: Faults, key: str, what: str, value: str, known: Collection[str], more: str = ""
) -> None:
    """Note a value that is given and is none of the known ones."""
    if value and value not in known:
        near = near_or_all(value, known or ["none"], "; there are ")
        faults.add(key, f"no {what} {quote(value)}{near}{more}")


def of_jobs(files: Files) -> list[str]:
    """The names of the files that have jobs."""
    return [name for name, path in files.items() if "job" in tables_of(path)]


def _check_jobs(view: View, files: Files, faults: Faults) -> None:
    """Note jobs that the command line did not name, and what has no use beside them."""
    more = "; name it behind serve"
    _check_known(faults, "jobs", "file of jobs", view.jobs, of_jobs(files), more)
    unused = [key for key in _KEYS if key not in ("machine", "jobs", "runtime", "calibration")]
    _refuse(view, unused, faults, "the file of the jobs says what they repeat")


def _check_mesh(view: View, faults: Faults) -> None:
    """Note what a mesh lacks, and what has no use beside it. A schedule here is no file."""
    faults.check(view.model, "model", f"missing; a mesh trains one, such as {next(iter(DECODERS))}")
    words = "missing; it says how many sequences a step has"
    faults.check(view.global_batch, "global_batch", words)
    _check_known(faults, "schedule", "schedule", view.schedule, SCHEDULES)
    _refuse(view, ("algo", "packing"), faults, "NCCL chooses how the collectives of a mesh run")


def _refuse(view: View, keys: Iterable[str], faults: Faults, words: str) -> None:
    """Note those of the keys that the view gives."""
    for key in keys:
        faults.check(getattr(view, key) == getattr(View(), key), key, words)


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
