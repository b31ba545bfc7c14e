"""Configurations: the product of machines, counts, networks, methods, strategies and batches.

Configurations in plain words: what to order, how it is joined, and how the job uses it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from simreduce.export.framework import METHODS
from simreduce.files.formats import (
    ANYTHING,
    LINE,
    Field,
    FieldValues,
    Format,
    OneOrMore,
    choice,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.planners.strategy import parse_strategy
from simreduce.study.capacity.choose import Configuration
from simreduce.study.capacity.price_list import Pieces
from simreduce.study.job_files import elsewhere
from simreduce.study.scenario_files import beside
from simreduce.study.sweep import MESH
from simreduce.study.sweep.question import is_single
from simreduce.topology import Topology, load_topology, shipped
from simreduce.topology.elements import networks
from simreduce.topology.generators import FABRICS
from simreduce.training import StepQuestion, parse_step
from simreduce.training.mesh import fill, read_mesh
from simreduce.training.mesh.mesh_table import AUTO, parse_mesh
from simreduce.training.sharded import HSDP
from simreduce.training.simulation import MemoryFit, device_memory, least_memory
from simreduce.training.step_table import MOST_SAMPLES
from simreduce.workload import Model
from simreduce.workload.decoder import Sequences

MOST_NODES = 1 << 20
_OF_A_BATCH = ("time", "profile", "activations")
"""Keys of `[step]` that were measured with its batch, and change in proportion to it."""


_OF_OPTIONS = {"method": "method", "strategy": "strategy", "strategies": "strategy"}
"""Keys that a table `[step]` may not have here, and what options call them."""
_SAID_BY_STEP = {
    "variable_update": (("method", "strategy"), "says how to reduce; give one"),
    MESH: (("method", "strategy", "batch"), "says how ranks share the work; leave it out"),
}
"""Keys of `[step]`, those of options that do not go with each, and why."""


def check_step(step: object, faults: Faults, path: str) -> None:
    """Note a fault for each key of a table `[step]` that belongs in options."""
    for key in step if isinstance(step, dict) else ():
        called = _OF_OPTIONS.get(key)
        faults.check(not called, f"{path}.{key}", f"write it in options, as {called}")


OPTION = Format(
    "options",
    "Configurations to choose from: every combination of the values of its keys.",
    Field("name", LINE, "A name that tells it from other tables of options.", ""),
    Field("machine", OneOrMore(LINE), "Machines, by name or file.", required=True),
    Field("nodes", OneOrMore(whole(1, MOST_NODES)), "How many of them.", [1],
          default_words="1"),
    Field("network", OneOrMore(LINE), "The network of more than one, as behind a machine's name:"
          ' `"switch"`, `"fat_tree,oversubscription=2"`.', ["switch"],
          default_words='`"switch"`'),
    Field("nic", OneOrMore(LINE), "The class of the network's links.", [""],
          default_words="the machine's"),
    Field("method", OneOrMore(LINE), "As in `[step]`: `ddp`, `zero1`, `fsdp` and so on.", ["ddp"],
          default_words="`ddp`"),
    Field("strategy", OneOrMore(LINE), "Strategies of the reductions.", ["nccl"],
          default_words="`nccl`"),
    Field("batch", OneOrMore(whole(1, MOST_SAMPLES)), "Samples of a GPU.",
          default_words="`step.batch`"),
    Field("step", ANYTHING, "Keys of `[step]` of a scenario, over those of all options, such as"
          " the rate that this machine's GPUs achieve."),
    check=lambda values, faults, path: check_step(values["step"], faults, f"{path}.step"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CapacityOption:
    """A configuration: what it is called, the scenario that asks for its step, and its pieces.

    `memory` is that of a GPU in bytes, 0 if unknown. `refused` says why it is none, "" if it is
    one. `batch` are the samples of a GPU where the scenario's are those that were measured.
    With a `slowdown`, the scenario has jobs, and the question is how many copies of them fit.
    """

    group: int
    key: Configuration
    nodes: int
    devices: int
    scenario: Mapping[str, Any]
    memory: int = 0
    refused: str = ""
    batch: int | None = None
    slowdown: float | None = None


def expand(
    group: int,
    table: FieldValues,
    common: Mapping[str, Any],
    step: object,
    global_batch: int | None,
    model: Model | None,
    decoder: Sequences | None,
    folder: str,
    faults: Faults,
) -> Iterator[CapacityOption]:
    """The options of one table. Its faults are noted, once for each machine."""
    at = f"options[{group}]"
    given = {"step": step, f"{at}.step": table["step"]}
    tables = {path: {} if each is None else each for path, each in given.items()}
    fine = [
        faults.check(isinstance(each, dict), path, "must be a table")
        for path, each in tables.items()
    ]
    if not all(fine) or any(key in table.faulty for key in table):
        return
    merged: dict[str, Any] = {
        key: value
        for each in tables.values()
        for key, value in dict[str, Any](each).items()
        if key not in _OF_OPTIONS
    }
    said = [way for way in _SAID_BY_STEP if way in merged]
    for way in said:
        keys, words = _SAID_BY_STEP[way]
        for key in keys:
            faults.check(key not in table.given, f"{at}.{key}", f"step.{way} {words}")
    if MESH in merged and global_batch is not None:
        merged = {"global_batch": global_batch, **merged}
    methods, strategies = ([""], [""]) if said else (table["method"], table["strategy"])
    for i, text in enumerate(strategies):
        if text:
            faults.attempt(f"{at}.strategy[{i}]", parse_strategy, text)
    _check_networks(at, table, faults)
    batches = table["batch"] or [None]
    measured = next((key for key in _OF_A_BATCH if key in merged), "")
    if MESH in merged:
        batches, global_batch = [None], None
    elif global_batch is not None and (table["batch"] or ("batch" in merged and not measured)):
        faults.add(f"{at}.batch", "global_batch says how many samples each GPU gets")
        return
    if not faults.check(
        not measured or "batch" in merged or (global_batch is None and len(batches) == 1),
        f"{at}.step.batch",
        f"missing; say of how many samples step.{measured} is",
    ):
        return
    if MESH in merged:
        own_faults = Faults()
        parse_mesh(merged, decoder, None, own_faults, partial(beside, Path(folder, "-")))
        faults.add(at, *own_faults.problems)
    for machine in table["machine"] or ():
        before, near = len(faults.problems), beside(Path(folder, "-"), machine)
        if (box := _box(at, table, machine, near, faults)) is None:
            continue
        asked = {
            method: None if MESH in merged else _read_step(
                merged | ({"method": method} if method else {}), batches[0] or global_batch,
                model, box, folder, faults, at,
            )
            for method in methods
        }  # fmt: skip
        if len(faults.problems) > before:
            continue
        for option in _product(
            group, table, common, merged, (machine, near), box, (methods, strategies, batches),
            global_batch,
        ):  # fmt: skip
            question = asked[option.key.method]
            yield option if option.refused else _fitting(option, question, model, len(box.devices))


def expand_jobs(
    group: int, table: FieldValues, document: Mapping[str, Any], slowdown: float, folder: str,
    faults: Faults,
) -> Iterator[CapacityOption]:  # fmt: skip
    """The options of one table for copies of the jobs of a document."""
    at = f"options[{group}]"
    if any(key in table.faulty for key in table):
        return
    _check_networks(at, table, faults)
    for machine in table["machine"] or ():
        before, near = len(faults.problems), beside(Path(folder, "-"), machine)
        box = _box(at, table, machine, near, faults)
        if box is None or len(faults.problems) > before:
            continue
        for nodes, network, text in _clusters(table, machine, near):
            key = Configuration(table["name"], machine, str(nodes), network, "", "", "")
            asked, devices = elsewhere(document, text), nodes * len(box.devices)
            yield CapacityOption(group, key, nodes, devices, asked, slowdown=slowdown)


def _check_networks(at: str, table: FieldValues, faults: Faults) -> None:
    """Note networks and classes of links that do not exist."""
    for i, text in enumerate(table["network"]):
        choice(tuple(FABRICS), "fabric").take(
            text.partition(",")[0].strip(), faults, f"{at}.network[{i}]"
        )
    for i, text in enumerate(table["nic"] if "nic" in table.given else ()):
        choice(networks(), "class of network link").take(text, faults, f"{at}.nic[{i}]")


def _box(at: str, table: FieldValues, machine: str, near: str, faults: Faults) -> Topology | None:
    """One machine, whose file is `near`; None with a fault. A fault too if several must be one."""
    box = faults.attempt(f"{at}.machine", _load, near)
    faults.check(
        box is None or max(table["nodes"]) == 1 or is_single(near),
        f"{at}.machine",
        f"{machine}: is not one machine, so that no network joins several; give its name, or"
        " nodes = 1",
    )
    return box


def _clusters(table: FieldValues, machine: str, near: str) -> Iterator[tuple[int, str, str]]:
    """How many machines there are, the network that joins them ("" for one) and the text of all."""
    first = table["network"][0], table["nic"][0]
    for nodes, network, nic in itertools.product(table["nodes"], table["network"], table["nic"]):
        if nodes > 1:
            shown = ",".join([network, *([f"nic={nic}"] if nic else [])])
            yield nodes, shown, f"{near}x{nodes},fabric={shown}"
        elif (network, nic) == first:  # one machine has no network
            yield nodes, "", machine


def _read_step(
    asked: Mapping[str, Any], batch: int | None, model: Model | None, box: Topology, folder: str,
    faults: Faults, at: str,
) -> StepQuestion | None:  # fmt: skip
    """The question of `[step]` on this machine; its faults are noted under the option."""
    own = Faults()
    keeps = batch is None or ("batch" in asked and any(key in asked for key in _OF_A_BATCH))
    table = dict(asked) if keeps else {**asked, "batch": batch}
    found = parse_step(table, model, box, own, partial(beside, Path(folder, "-")))
    for problem in own.problems:
        place, _, text = problem.partition(": ")
        # Options have it as a key of their own.
        faults.add(f"{at}.method" if place == "step.method" else f"{at}.{place}", text)
    return found


def _fitting(
    option: CapacityOption, question: StepQuestion | None, model: Model | None, local: int
) -> CapacityOption:
    """The option, refused if its GPUs surely cannot hold what a step needs."""
    if question is None or question.mode or model is None:
        return option
    (method,) = question.methods
    sharding = question.numerics
    ranks = (sharding.group or local) if method == HSDP else option.devices
    activations = question.activations.rescale(
        question.job.batch,
        option.scenario["step"]["batch"] if option.batch is None else option.batch,
    )
    least = least_memory(method, model, sharding, ranks, activations)
    fit = MemoryFit(least.needed, option.memory, least.activations)
    return replace(option, refused=f"a GPU {fit.words}") if fit.fits is False else option


def _product(
    group: int,
    table: FieldValues,
    common: Mapping[str, Any],
    step: Mapping[str, Any],
    named: tuple[str, str],
    box: Topology,
    ways: tuple[Sequence[str], Sequence[str], Sequence[int | None]],
    global_batch: int | None,
) -> Iterator[CapacityOption]:
    """Every combination with one machine, by its name and where that leads."""
    passes = step.get("accumulate", 1)
    for (nodes, shown, text), method, strategy, batch in itertools.product(
        _clusters(table, *named), *ways
    ):
        devices = nodes * len(box.devices)
        refused = ""
        if global_batch is not None:
            batch, rest = divmod(global_batch, devices * passes)  # noqa: PLW2901 - that of each GPU
            if rest or not batch:
                refused = f"{global_batch} samples do not come out even on {devices} GPUs"
        samples = step.get("batch") if batch is None else batch
        own = "batch" in step and any(key in step for key in _OF_A_BATCH)
        asked: dict[str, Any] = {"batch": samples, **step} if own else {**step, "batch": samples}
        if MESH in step:
            asked, refused = _on_meshes(step, devices)
        asked |= {"method": method} if method else {}
        scenario = {**common, "topology": text, "step": asked}
        if strategy:
            scenario["strategies"] = [strategy]
        key = Configuration(
            table["name"],
            named[0],
            str(nodes),
            shown,
            method,
            strategy or str(step.get("variable_update", "")),
            "" if MESH in step else str(samples),
        )
        yield CapacityOption(
            group, key, nodes, devices, scenario, device_memory(box, box.devices), refused,
            samples if own else None,
        )  # fmt: skip


def _on_meshes(step: Mapping[str, Any], devices: int) -> tuple[dict[str, Any], str]:
    """The step with those of its meshes that fill the machines, or why none does."""
    meshes = step[MESH] if isinstance(step[MESH], list) else [step[MESH]]
    own = Faults()
    able = [
        text for text in meshes
        if text == AUTO or own.attempt("", lambda text: fill(read_mesh(text), devices), text)
    ]  # fmt: skip
    return {**step, MESH: able or meshes}, "" if able else "; ".join(dict.fromkeys(own.problems))


_load = lru_cache(64)(load_topology)


def links_of(option: CapacityOption, folder: str) -> Pieces:
    """The links of an option, without its machines. InputError if it cannot be built."""
    return _count(beside(Path(folder, "-"), str(option.scenario["topology"])))


@lru_cache(4096)
def _count(text: str) -> Pieces:
    cluster = load_topology(text)
    kinds = {name: node.kind for name, node in cluster.nodes.items()}
    joins = [k for k in cluster.links[::2] if "switch" in (kinds[k.source], kinds[k.target])]
    ports = sum((kinds[k.source] == "switch") + (kinds[k.target] == "switch") for k in joins)
    classes = frozenset(link.link_class for link in cluster.links)
    return Pieces("", 0, joins[0].link_class if joins else "", ports, len(joins), classes)


_PRODUCT = re.compile(r"(?:NVIDIA )?((?!One )[A-Za-z][^:,(]*?)(?: with |:|,| \(|$)")
"""What a title begins with, such as `AWS p4d.24xlarge` or `DGX H100`."""


_NICS = {"ib": "InfiniBand", "roce": "RoCE", "efa": "EFA", "tcp": "TCP", "tcpxo": "GPUDirect-TCPXO"}
_RATE = re.compile(r"(\d+)(?:x(\d+))?")
"""Gbit/s of a port, and how many ports serve one GPU."""


def plain(key: Configuration, varied: Collection[str]) -> str:
    """`4 DGX H100, 2:1 fat tree, batch 2 a GPU`.

    A method and a strategy, and the plain switch, are named where options differ in them: `varied`
    are the parts of keys in which they do.
    """
    parts = (
        (f"{key.nodes} {product(key.machine)}", True),
        (key.name, "name" in varied),
        (key.network and _network(key.network), key.network != "switch" or "network" in varied),
        (METHODS.get(key.method, key.method), "method" in varied),
        (key.strategy.replace("_", " "), "strategy" in varied),
        (key.batch and f"batch {key.batch} a GPU", True),
    )
    return ", ".join(words for words, shown in parts if words and shown)


def product(machine: str) -> str:
    """What a shipped machine is called by who sells it; the name of another one."""
    return _products().get(machine, machine.removesuffix(".toml"))


@lru_cache(1)
def _products() -> dict[str, str]:
    found = {
        name: match[1]
        for name, title in shipped()
        if (match := _PRODUCT.match(title)) and len(match[1].split()) <= 3
    }
    often = Counter(found.values())
    return {name: each if often[each] == 1 else f"{each} ({name})" for name, each in found.items()}


def _network(text: str) -> str:
    """`2:1 fat tree`, `switch of 100 Gbit/s TCP ports`, from a network as options write it."""
    fabric, *settings = (part.strip() for part in text.split(","))
    pairs = dict(each.partition("=")[::2] for each in settings)
    words = fabric.replace("rail_", "rail-").replace("_", " ")
    if ratio := pairs.pop("oversubscription", ""):
        words = f"{ratio}:1 {words}"
    if nic := pairs.pop("nic", ""):
        words += f" of {_ports(nic)} ports"
    rest = ", ".join(f"{name} {value}" for name, value in pairs.items())
    return f"{words} ({rest})" if rest else words


def _ports(nic: str) -> str:
    """`100 Gbit/s TCP`, `InfiniBand NDR`, from the name of a class of network links."""
    kind, _, rate = nic.partition("_")
    if kind not in _NICS:
        return nic
    if match := _RATE.fullmatch(rate):
        many = f"{match[2]} x " if match[2] else ""
        return f"{many}{match[1]} Gbit/s {_NICS[kind]}"
    return f"{_NICS[kind]} {rate.upper()}".rstrip()
