"""Reads scenarios from TOML files, and says every fault of one at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simreduce.engine import CALM, Disturbance
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.setup import Setup, read_runtime
from simreduce.errors import InputError, ScenarioError, near_or_all, quote
from simreduce.export import check_mesh_target
from simreduce.export.frameworks import FRAMEWORKS as SYSTEMS, TRAINED
from simreduce.files import data_dir, exists, flatten, parse_toml, read_text
from simreduce.files.formats import LINE, FieldValues, whole
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import Layout, layout, node_names
from simreduce.planners.nccl import DEFAULTS, estimates, facts, plan
from simreduce.planners.nccl.environment import settings_of
from simreduce.planners.nccl.nics import with_nics
from simreduce.planners.packing import Fusion, joined_sizes, ready_order, why_too_fine
from simreduce.planners.strategy import ALL, Strategy, misplaced, parse_strategy
from simreduce.study.deepspeed import read_config, tables_of_config
from simreduce.study.scenario import (
    FOR_MACHINES,
    FRAMEWORKS,
    MARKS,
    MESHES,
    OF_MACHINES,
    OF_TOPOLOGIES,
    OPTIONS,
    REPLICAS,
    REQUIRED,
    SCENARIO,
    TUNED,
    UNUSED,
    LoadMachine,
    Meshes,
    Replicas,
    Scenario,
    in_cycles,
    with_step,
)
from simreduce.topology import Topology, load_topology
from simreduce.topology.elements import joined
from simreduce.topology.loader import fail, find
from simreduce.topology.switch_groups import label, read_machines
from simreduce.training import StepQuestion, load_model, parse_step, replicas
from simreduce.training.eager import MEGATRON
from simreduce.training.executions.reading import SUFFIXES, is_record
from simreduce.training.mesh.mesh_table import parse_mesh
from simreduce.training.recorded import ranks_of, read_recorded
from simreduce.training.stacks import STACKS
from simreduce.training.step_table import MOST_SAMPLES
from simreduce.units import MIB, first_few, plural
from simreduce.workload import Workload
from simreduce.workload.loader import load_decoder, load_workload


def asks_for_meshes(text: str) -> bool:
    """Whether `text` means a scenario about meshes, sensible or not."""
    return has_mesh(tables_of(text))


def has_mesh(document: Mapping[str, Any]) -> bool:
    """Whether the tables of a scenario ask about meshes."""
    return isinstance(document.get("step"), dict) and "mesh" in document["step"]


def load_scenario(text: str, batch: object = None, **overrides: object) -> Scenario:
    """The scenario in the file `text`, or the shipped one of that name.

    Keyword arguments that are not None replace the file's keys (`runtime="ideal"`), `batch` its
    `step.batch`; the measured times of a step change in proportion.
    """
    found, _, problems = look_at_scenario(text, batch, {}, **overrides)
    if problems or found is None:
        raise ScenarioError(problems)
    return found


def look_at_scenario(
    text: str, batch: object = None, options: Mapping[str, str] = OPTIONS, ranks: int = 0, /,
    **overrides: object,
) -> tuple[Scenario | None, Topology | None, list[str]]:  # fmt: skip
    """As `load_scenario`: scenario, machine, and all faults, which name the `options` of
    commands. Of the machine so many `ranks` run, by default all.
    """
    try:
        path, document = read_scenario_file(text, {**overrides, "batch": batch, "ranks": ranks})
    except ScenarioError as error:
        return None, None, [*error.problems]
    other = REPLICAS if "replicas" in document else MESHES if has_mesh(document) else ""
    if other:
        return None, None, [f"{path}: {other}"]
    faults, given = _faults(path, {**overrides, "batch": batch}, options)
    batch = given.pop("batch", None)
    if batch is not None and is_record(text) and "step" in document:  # it says no batch
        document, batch = {**document, "step": {**document["step"], "batch": batch}}, None
    found = _build(
        path, _replace(document, given), faults, batch, load_topology,
        alone="strategies" not in given,
    )  # fmt: skip
    return (*found, faults.problems)


def load_replicas(text: str, disturbance: Disturbance = CALM, **overrides: object) -> Replicas:
    """The scenario with `[replicas]`.

    InputError names options of commands, and what of the disturbance the machine lacks.
    """
    path, document = read_scenario_file(text)
    faults, given = _faults(path, overrides, OPTIONS)
    return build_replicas(path, {**document, **given}, disturbance, faults)


def load_meshes(text: str, **overrides: object) -> Meshes:
    """The scenario with a `step.mesh`; ScenarioError lists every fault, and names options."""
    path, document = read_scenario_file(text)
    if not has_mesh(document):
        raise ScenarioError([f'{path}: step.mesh: is missing, such as "tp=8"'])
    faults, given = _faults(path, overrides, OPTIONS)
    return build_meshes(path, _replace(document, given), faults)


def _replace(document: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """The tables with the keys that are `given`, those of tables as `tune.free`."""
    found = {**document, **{key: value for key, value in given.items() if "." not in key}}
    for key, value in given.items():
        name, dot, inner = key.partition(".")
        if dot and isinstance(table := found.get(name, {}), dict):
            found[name] = {**table, inner: value}
    return found


def _faults(
    path: Path, overrides: Mapping[str, object], options: Mapping[str, str]
) -> tuple[Faults, dict[str, object]]:
    """A collector that names `options`, and the keys that are overridden."""
    given = {key: value for key, value in overrides.items() if value is not None}
    named = {key: options.get(key, key) for key in given}
    if is_record(str(path)):  # which names no machine
        named |= {key: options.get(key, key) for key in ("topology", "workload")}
    return Faults(str(path), options=named), given


def read_scenario_file(
    text: str, given: Mapping[str, object] = MappingProxyType({})
) -> tuple[Path, dict[str, Any]]:
    """Return the file that `text` means and its raw tables. ScenarioError if there is none.

    DeepSpeed's configurations have tables by what is `given`, of the keys of a scenario; without
    that, only the names of the tables.
    """
    path = Path(text)
    if is_record(text):
        config = read_config(path)
        return path, _of_record(path) if config is None else _of_config(config, path, given)
    if path.suffix != ".toml" and not exists(text):
        known = shipped()
        if text not in known and find(text) is not None:
            raise ScenarioError(f"{text} is a machine, not a scenario; {FOR_MACHINES.format(text)}")
        if text not in known:
            raise ScenarioError(
                f"no scenario {quote(text)}{near_or_all(text, known, '; shipped: ')};"
                " a file ends in .toml"
            )
        path = data_dir("scenarios") / f"{text}.toml"
    document = parse_toml(str(path), read_text(path, ScenarioError), ScenarioError)
    if not any(key in document for key in MARKS) and any(key in document for key in OF_MACHINES):
        raise ScenarioError(
            f"{path}: is a machine file, not a scenario; {FOR_MACHINES.format(path)}"
        )
    return path, document


def _of_config(
    document: Mapping[str, Any], path: Path, given: Mapping[str, object]
) -> dict[str, Any]:
    """The tables of DeepSpeed's configuration. ScenarioError with every fault."""
    if not given:
        return {"workload": "", "step": {}}

    def gpus() -> int:
        try:
            machine = load_topology(str(given["topology"])) if given.get("topology") else None
        except InputError:  # which says so when the machine is read
            return 0
        return int(str(given.get("ranks") or (len(machine.devices) if machine else 0)))

    try:
        return tables_of_config(document, path, given, gpus)
    except InputError as error:
        raise ScenarioError(error.problems) from None


def _of_record(path: Path) -> dict[str, Any]:
    """The tables of a scenario whose job was recorded. ScenarioError if it is none to simulate."""
    try:
        found = read_recorded(str(path))
    except InputError as error:
        raise ScenarioError(error.problems) from None
    table: dict[str, Any] = {"title": f"The job recorded in {path.name}", "workload": path.name}
    return {**table, "step": {"batch": 1, "profile": path.name}} if found.is_timed else table


def is_scenario(text: str) -> bool:
    """Whether `text` means a scenario.

    A scenario is the name of a shipped one, or a TOML file with the keys of one.
    """
    return any(key in tables_of(text) for key in MARKS)


def tables_of(text: str) -> Mapping[str, Any]:
    """The tables of the scenario that `text` means, sensible or not; none if it cannot be read."""
    try:
        return read_scenario_file(text)[1]
    except ScenarioError:
        return {}


def shipped() -> list[str]:
    """Names of the scenarios that come with simreduce."""
    return sorted(p.stem for p in data_dir("scenarios").glob("*.toml"))


def beside(path: Path, name: str) -> str:
    """The path of a file that the scenario at `path` names, which is looked for beside it first."""
    if Path(name).suffix not in (".toml", ".csv", *SUFFIXES):
        return name
    near = str(path.parent / name)
    return near if os.path.isfile(near) else name  # noqa: PTH113 - Path.is_file raises for names that no file can have


def _read(path: Path, table: Mapping[str, Any], faults: Faults, load: LoadMachine) -> FieldValues:
    """The values of a scenario, with its machine, runtime and calibration.

    None where these have faults.
    """
    settings = table.get("nccl")
    if isinstance(settings, dict) and isinstance(settings.get("tuner"), str):
        table = {**table, "nccl": {**settings, "tuner": beside(path, settings["tuner"])}}
    values = SCENARIO.read(table, faults)
    values["nccl"] = settings_of(values["nccl"]) if values["nccl"] else DEFAULTS
    values["title"] = path.stem if values["title"] is None else values["title"]
    _load(
        path, values, faults, "topology", load, flatten(values["topology_overrides"] or {}) or None
    )
    if values["topology"]:
        values["topology"] = faults.attempt("nccl", with_nics, values["topology"], values["nccl"])
    if values["topology"] and values["link_factors"]:
        scale, where = values["topology"].scale_links, f"{path}: link_factors"
        values["topology"] = faults.attempt("link_factors", scale, values["link_factors"], where)
    values["gone"] = frozenset()
    if values["topology"] and values["fails"]:
        values["topology"], values["gone"] = faults.attempt(
            "fails", fail, values["topology"], values["fails"], f"{path}: fails"
        ) or (values["topology"], frozenset())
    _load(path, values, faults, "runtime", read_runtime)
    _load(path, values, faults, "calibration", load_calibration)
    return values


def _load(
    path: Path,
    values: FieldValues,
    faults: Faults,
    key: str,
    load: Callable[..., object],
    *more: object,
) -> None:
    """Put what `load` reads in the place of its name."""
    if values[key] is not None:
        values[key] = faults.attempt(key, load, beside(path, values[key]), *more)


def build_scenario(
    path: Path, table: Mapping[str, Any], batch: object = None, load: LoadMachine = load_topology,
    options: Mapping[str, str] | None = None,
) -> Scenario:  # fmt: skip
    """Return the scenario of tables that were read from the file at `path`, and perhaps changed.

    `load` loads its machine. ScenarioError lists every fault; for a key in `options` it names the
    text given there instead of the file.
    """
    faults = Faults(str(path), options=options)
    found, _ = _build(path, table, faults, batch, load, alone=True)
    return faults.require(found, ScenarioError)


def _build(
    path: Path, table: Mapping[str, Any], faults: Faults, batch: object, load: LoadMachine, *,
    alone: bool,
) -> tuple[Scenario | None, Topology | None]:  # fmt: skip
    """The scenario and its machine, None where there are faults.

    Strategies that replace the file's (not `alone`) may do without a `cycle`.
    """
    values = _read(path, table, faults, load)
    topology = values["topology"]
    _require_all(values, faults)
    given = values["workload"]
    _load(path, values, faults, "workload", load_model)
    before = len(faults.problems)
    strategies = _strategies(values, faults)
    faults.check(
        values["framework"] in (None, *TRAINED),
        "framework",
        f"{values['framework']} is for a step with a mesh; known are {', '.join(FRAMEWORKS)}",
    )
    if values["workload"] and (finest := values["workload"].finest):
        strategies = _of_buckets(strategies, values["workload"].workload, finest, faults)
    fuses = (
        not alone
        or len(faults.problems) > before
        or strategies is None
        or any(isinstance(strategy.packer, Fusion) for strategy in strategies)
    )
    part = _part(values, topology, faults)
    step = _step(path, values, topology, faults, batch)
    faults.check(
        not step or step.mode or fuses or "cycle" not in values["step"],
        "step.cycle",
        "is for Horovod's buffers, which no strategy has; add +fusion to one",
    )
    advised = _advised(values, topology, faults)
    settled = bool(advised["framework"]) and SYSTEMS[advised["framework"]].settled
    faults.check(
        not (step and settled and "cycle" in values["step"]),
        "step.cycle",
        f"is Horovod's; {advised['framework']} settles buffers before a step",
    )
    if faults.problems or topology is None:
        return None, topology
    named = [given, values["step"].get("profile", "") if step else ""]
    step = _on_machine([beside(path, text) for text in named], step, topology, faults)
    if faults.problems:
        return None, topology
    setup = Setup(
        topology, values["runtime"], values["calibration"], part=part, nccl=values["nccl"],
        call_cost=values["call_cost"],
    )  # fmt: skip
    if strategies and all(each.reduced_by_nccl for each in strategies):
        at = facts(topology, part.ranks if part and part.machines == 1 else (), setup.nccl)
        if not (at.n < 2 or estimates(plan(at, setup.nccl), "all_reduce", 1 << 20)):
            faults.add("nccl", f"NCCL_ALGO and NCCL_PROTO leave no algorithm on {topology.name}")
            return None, topology
    cuts = [name for name, factor in (values["link_factors"] or {}).items() if not factor]
    if lost := _cut_off(setup, cuts):
        faults.add("link_factors", lost)
        return None, topology
    if step and advised["framework"]:
        step = in_cycles(step, advised["framework"])
    if step and step.sharding and not step.sharding.units and advised["framework"]:
        usual = SYSTEMS[advised["framework"]].default_shards(
            step.sharding, values["workload"].workload
        )
        step = replace(step, sharding=replace(step.sharding, units=usual.units))
    plain = Scenario(
        path.stem, values["title"], setup, values["workload"].workload, strategies,
        values["repeat"], values["faithful"], step, **advised,
    )  # fmt: skip
    return with_step(plain) if step else plain, topology


def _on_machine(
    named: Sequence[str], step: StepQuestion | None, topology: Topology, faults: Faults
) -> StepQuestion | None:
    """The step with a note if a machine has more GPUs than one of the `named` records has ranks.

    Fewer GPUs are a fault.
    """
    record, ranks = ranks_of(named)
    have = len(topology.devices)
    faults.check(
        ranks <= have,
        "topology",
        f"{topology.name} has {plural(have, 'GPU')}, and {Path(record).name} was recorded with"
        f" {ranks} ranks (world_size)",
    )
    if step is None or not 0 < ranks < have:
        return step
    note = f"the job had {plural(ranks, 'rank')}, and this machine has {plural(have, 'GPU')}"
    profile = replace(step.job.profile, notes=(*step.job.profile.notes, note))
    return replace(step, job=replace(step.job, profile=profile))


def _require_all(values: FieldValues, faults: Faults) -> None:
    """Note the keys that only `[replicas]` can do without, if they are missing."""
    for key in REQUIRED:
        about = SCENARIO[key].about
        faults.check(key in values.given, key, f"missing; {about[0].lower()}{about[1:-1]}")


def _cut_off(setup: Setup, cuts: Sequence[str]) -> str:
    """The fault of cut links without which not all GPUs are joined any more, else ""."""
    if not cuts:
        return ""
    machine, ranks = setup.topology, setup.layout.ranks
    wires = ((link.source, link.target) for link in machine.wires)
    most = max((part.intersection(ranks) for part in joined(ranks, wires)), key=len)
    if not (lost := [rank for rank in ranks if rank not in most]):
        return ""
    verb, left = "is" if len(lost) == 1 else "are", plural(len(most), "GPU")
    return f"{first_few(lost)} {verb} cut off from the other {left} by {first_few(cuts)}"


def build_replicas(
    path: Path,
    table: Mapping[str, Any],
    disturbance: Disturbance = CALM,
    faults: Faults | None = None,
) -> Replicas:
    """As `build_scenario`, of tables with `[replicas]`. ScenarioError lists `faults` too."""
    faults = faults or Faults(str(path))
    unused = UNUSED | dict.fromkeys(
        () if "topology" in table else OF_TOPOLOGIES, "only a topology has use for it"
    )
    values = _read(path, {k: v for k, v in table.items() if k not in unused}, faults, load_topology)
    topology = values["topology"]
    for key, why in unused.items():
        faults.check(key not in table, key, why)
    _load(path, values, faults, "workload", load_workload)
    workload = values["workload"]
    faulty = {key for key in REQUIRED if key in table and not values[key]}
    lacking = Faults()
    if "topology" not in table and disturbance.text:
        why = f"has no topology, so nothing is there to disturb: {disturbance.text}"
        lacking.add("", f"{path} {why}")
    elif topology is not None:
        lacking.attempt("", disturbance.check, topology)
    faulty |= {"disturbance"} if lacking.problems else set()
    given = values["runtime"], values["calibration"], disturbance
    setup = None if topology is None else Setup(topology, *given).running(None)
    question = replicas.parse_replicas(
        table.get("replicas"), faults, setup, workload, faithful=values["faithful"], faulty=faulty
    )
    if faults.problems or lacking.problems or question is None:
        raise ScenarioError([*faults.problems, *lacking.problems])
    return Replicas(path.stem, values["title"], setup, workload, values["faithful"], question)


def build_meshes(
    path: Path, table: Mapping[str, Any], faults: Faults | None = None,
    load: LoadMachine = load_topology, part: Layout | None = None,
) -> Meshes:  # fmt: skip
    """As `build_scenario`, of tables with a `step.mesh`, on all GPUs or a `part`.
    ScenarioError lists `faults` too.
    """
    faults = faults or Faults(str(path))
    values = _read(path, table, faults, load)
    _require_all(values, faults)
    for key in ("strategies", "repeat"):
        faults.check(key not in values.given, key, "NCCL chooses how the collectives of a mesh run")
    if values["framework"]:
        faults.attempt("framework", check_mesh_target, values["framework"])
    alike = "one group of ranks stands for all alike, so links must be alike"
    faults.check("fails" not in values.given, "fails", alike)
    _load(path, values, faults, "workload", load_decoder)
    setup, topology = None, values["topology"]
    if topology is not None:
        classes = {link.link_class for link in topology.links}
        for name, factor in (values["link_factors"] or {}).items():
            faults.check(
                name in classes and factor,
                "link_factors",
                f"{name}: {alike}; classes may be slower, {', '.join(sorted(classes))}",
            )
    part = part or _part(values, topology, faults)
    if topology is not None and values["runtime"] and values["calibration"]:
        setup = Setup(
            topology, values["runtime"], values["calibration"], part=part, nccl=values["nccl"],
        )  # fmt: skip
    advised = _advised(values, topology, faults)
    usual = (values["framework"] or "").partition("=")[0]
    found = parse_mesh(
        table["step"], values["workload"], setup, faults, partial(beside, path),
        usual if usual in STACKS else MEGATRON,
    )  # fmt: skip
    if faults.problems or found is None or setup is None:
        raise ScenarioError(faults.problems)
    return Meshes(path.stem, values["title"], setup, values["workload"], found, **advised)


def _step(
    path: Path, values: FieldValues, topology: Topology | None, faults: Faults, batch: object
) -> StepQuestion | None:
    """The table `step`, if there is one."""
    if (table := values["step"]) is None:
        return None
    if batch is not None:
        batch = whole(1, MOST_SAMPLES).take(batch, faults, "batch") or 1
    found = parse_step(table, values["workload"], topology, faults, partial(beside, path), batch)
    updates = isinstance(table, dict) and "variable_update" in table
    faults.check(
        not updates or "strategies" not in values.given,
        "strategies",
        "step.variable_update says how to reduce; give one of the two",
    )
    return found


def _of_buckets(
    strategies: Sequence[Strategy] | None, workload: Workload, finest: int, faults: Faults
) -> tuple[Strategy, ...]:
    """The strategies for recorded buckets: those given, or NCCL with the buckets as they are and
    joined.
    """
    for i, each in enumerate(strategies or ()):
        if why := why_too_fine(each.packer, finest):
            faults.add(f"strategies[{i}]", f"{each.text}: {why}")
    if strategies is not None:
        return tuple(strategies)
    sizes = [workload.gradients[i].nbytes for i in ready_order(workload.gradients)]
    caps = ["", "+ddp", *(f"+ddp={size / MIB:g}" for size in joined_sizes(sizes, finest))]
    found = (parse_strategy(f"nccl{text}") for text in caps)
    return tuple(each for each in found if not why_too_fine(each.packer, finest))


def _part(values: FieldValues, topology: Topology | None, faults: Faults) -> Layout | None:
    """The GPUs that are left, of the `nodes`, in the order of `gpu_indices`."""
    order, gone, nodes = values["gpu_indices"], values["gone"], values["nodes"]
    if topology is None or not (order or gone or nodes is not None):
        return None
    shape = layout(topology).without(gone)
    if nodes is not None:
        before = len(faults.problems)
        places = read_places(faults, "nodes", shape, topology, nodes)
        shape = shape.on(places) if len(faults.problems) == before else shape
    try:
        return shape.with_order(order) if order else shape
    except InputError as error:
        faults.add("gpu_indices", *(each.removeprefix("gpu_indices ") for each in error.problems))
        return None


def read_places(
    faults: Faults, path: str, shape: Layout, topology: Topology, nodes: str, whose: str = ""
) -> tuple[int, ...]:
    """The places of the nodes of a host list among those of a layout, in the order of the list.

    Notes nodes that the topology lacks, or, with `whose` before them, that have failed, and leaves
    these out.
    """
    names = read_machines(faults, path, topology, nodes)
    place = {name: i for i, name in enumerate(node_names(shape, topology))}
    for name in names:
        faults.check(name in place, path, f"{whose}{label(name)} has failed")
    return tuple(place[name] for name in names if name in place)


def _advised(values: FieldValues, topology: Topology | None, faults: Faults) -> dict[str, Any]:
    """For whom advice is, what it is worth, whether `tune` orders nodes, and which are free."""
    table, free = values["tune"] or TUNED.read({}, faults), tuple[str, ...]()
    if table["free"] is not None:
        faults.check(
            table["placement"] or "placement" in table.faulty,
            "tune.free",
            "needs placement = true, or --placement",
        )
        if topology is not None:
            found = read_machines(faults, "tune.free", topology, table["free"])
            gone = {topology.nodes[name].machine for name in values["gone"]}
            free = tuple(name for name in found if name not in gone)
    return {
        "framework": values["framework"] or "", "worth": values["worth"],
        "placement": table["placement"], "free": free,
    }  # fmt: skip


def _strategies(values: FieldValues, faults: Faults) -> tuple[Strategy, ...] | None:
    given = [ALL] if values["strategies"] is None else values["strategies"]
    texts = [text for text in given if isinstance(text, str) and text.strip()]
    faults.add("strategies", *misplaced(texts))
    found = []
    for i, text in enumerate(given):
        line = LINE.take(text, faults, f"strategies[{i}]")
        if line is not None and line != ALL:
            found.append(faults.attempt(f"strategies[{i}]", parse_strategy, line))
    return None if ALL in given else tuple(filter(None, found))
