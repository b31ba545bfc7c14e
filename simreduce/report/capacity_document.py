"""`simreduce capacity` as a document."""

from __future__ import annotations

import math
from typing import Any

from simreduce.capacity.answer import Answer, parts
from simreduce.capacity.choose import OBJECTIVES, Candidate, Offer, Reach
from simreduce.capacity.flips import Assumption, Flip
from simreduce.capacity.options import NAMES, label
from simreduce.formats.documents import (
    COUNT,
    FLAG,
    PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
)

MONEY = number_in("currency")
_OFFER = Record(
    "offer",
    "A configuration at its price.",
    Key("option", TEXT, "What it is, in one line."),
    Key("name", TEXT, "The name of the option in the file."),
    Key("machine", TEXT, "The machine."),
    Key("nodes", COUNT, "How many."),
    Key("network", TEXT, 'What joins them; "" for one machine.'),
    Key("method", TEXT, "The method of the step."),
    Key("strategy", TEXT, "The strategy."),
    Key("batch", TEXT, "Samples per GPU."),
    Key("gpus", COUNT, "All of its GPUs."),
    Key("step_time_s", SECONDS, "A step with its stragglers."),
    Key("step_low_s", or_null(SECONDS), "The lower end of the simulated step's 80 % interval."),
    Key("step_high_s", or_null(SECONDS), "The upper end; null if nothing is known of errors."),
    Key("simulated_s", SECONDS, "A step without stragglers."),
    Key("compute_s", SECONDS, "The compute of a step."),
    Key("exposed_s", SECONDS, "Communication that no compute hides."),
    Key("efficiency", RATIO, "What GPUs do together over what they would do singly."),
    Key("goodput", RATIO, "The part of the time that makes progress."),
    Key(
        "samples_per_second",
        or_null(PER_SECOND),
        "Samples, lost time included; null for a step that takes no time.",
    ),
    Key("hourly", MONEY, "The price of an hour."),
    Key("time_s", or_null(SECONDS), "The whole run; null if it makes no progress."),
    Key("cost", or_null(MONEY), "The whole run; null if it makes no progress."),
    Key("pays", map_of(RATIO), "How many units of each item of the price list it needs."),
    Key("bottleneck", TEXT, "The link or memory that transfers need for the longest."),
    Key("misses", list_of(TEXT), "The targets that it misses."),
    Key("on_frontier", FLAG, "Whether no option beats it in both cost and time."),
)
_FLIP = Record(
    "flip",
    "Where the choice changes.",
    Key("at", RATIO, "The value of the assumption, in its unit."),
    Key("becomes", or_null(TEXT), "The choice beyond it; null if none meets the target."),
)
_END = Record(
    "end",
    "A number of nodes.",
    Key("nodes", COUNT, "That number."),
    Key("efficiency", RATIO, "The efficiency there."),
)
CAPACITY = Document(
    "capacity",
    "`simreduce capacity --json`: the cheapest machines that meet a target, and what that rests "
    "on.",
    Key("title", TEXT, "The title of the question."),
    Key("workload", TEXT, "The model."),
    Key("topology", TEXT, 'The machine of the choice; "" without one.'),
    Key("topology_digest", TEXT, 'Names that machine\'s content; "" without a choice.'),
    Key("currency", TEXT, "The currency of all prices."),
    Key(
        "prices",
        Record(
            "prices",
            "The price list.",
            Key("title", TEXT, "Its title."),
            Key("date", TEXT, "Of when it is."),
            Key(
                "items",
                list_of(
                    Record(
                        "item",
                        "A price.",
                        Key("name", TEXT, "What is paid for."),
                        Key("value", RATIO, "The price, in its unit."),
                        Key("unit", TEXT, "The unit, such as `USD/h`."),
                    )
                ),
                "Every price that counts.",
            ),
        ),
        "The prices.",
    ),
    Key(
        "target",
        Record(
            "target",
            "What a configuration must meet; null where it need not.",
            Key("samples", RATIO, "Samples of the run."),
            Key("step_time_s", or_null(SECONDS), "The longest step."),
            Key("efficiency", or_null(RATIO), "The least efficiency."),
            Key("samples_per_second", or_null(PER_SECOND), "The least rate of samples."),
            Key("time_s", or_null(SECONDS), "The longest run."),
            Key("budget", or_null(MONEY), "The highest cost of the run."),
            Key("hourly", or_null(MONEY), "The highest price of an hour."),
            Key("minimise", one_of(*OBJECTIVES), "What decides among those that meet it."),
        ),
        "The target.",
    ),
    Key("choice", or_null(_OFFER), "The best that meets the target; null if none does."),
    Key(
        "binds",
        list_of(
            Record(
                "part",
                "A part of the run.",
                Key("name", TEXT, "What takes the time."),
                Key("share", RATIO, "Its part of the time."),
            )
        ),
        "What the time of the choice consists of, most first.",
    ),
    Key("options", list_of(_OFFER), "Every option, in the order of the file."),
    Key("frontier", list_of(TEXT), "Options that none beats in both cost and time."),
    Key(
        "efficiency_holds",
        list_of(
            Record(
                "reach",
                "Up to how many nodes the target's efficiency holds.",
                Key("series", map_of(TEXT), "What the options share, all but the nodes."),
                Key("up_to", or_null(_END), "The last that has it; null if none does."),
                Key("below_at", or_null(_END), "The first that does not; null if all do."),
            )
        ),
        "Where the target's efficiency ends; empty without one.",
    ),
    Key(
        "sensitivity",
        list_of(
            Record(
                "assumption",
                "An assumption, and how far it may be off.",
                Key("assumption", TEXT, "What is assumed."),
                Key("value", RATIO, "Its value, in its unit."),
                Key("unit", TEXT, "The unit of the value."),
                Key("below", or_null(_FLIP), "The nearest change below; null for none."),
                Key("above", or_null(_FLIP), "The nearest change above; null for none."),
                Key("within", or_null(RATIO), "The factor that was tried; null for all values."),
                Key("tolerance", RATIO, "The width of where it changes, relatively; 0: exact."),
                Key(
                    "holds_down_to",
                    or_null(RATIO),
                    "The least value found with the same choice; null if that was not searched.",
                ),
                Key(
                    "holds_up_to",
                    or_null(RATIO),
                    "The greatest value found with the same choice, or null.",
                ),
                Key("complete", FLAG, "False if the search for its changes was ended early."),
            )
        ),
        "When the choice changes.",
    ),
    Key(
        "refused",
        list_of(
            Record(
                "refused",
                "An option that is not possible.",
                Key("option", TEXT, "What it is."),
                Key("reason", TEXT, "Why it is not possible."),
            )
        ),
        "Options without a time.",
    ),
    Key("waiting", list_of(TEXT), "Options that were not simulated, as the command was stopped."),
    Key("notes", list_of(TEXT), "What a reader should know of prices and figures."),
    Key("complete", FLAG, "False if the command was stopped or changes were not all found."),
)


def capacity_document(answer: Answer) -> dict[str, Any]:
    """The document of `--json`: `CAPACITY`."""
    q, chosen = answer.question, answer.chosen
    t = q.target
    return {
        **CAPACITY.head(),
        "title": q.title,
        "workload": q.workload,
        "topology": chosen.candidate.topology if chosen else "",
        "topology_digest": chosen.candidate.digest if chosen else "",
        "currency": q.prices.currency,
        "prices": {
            "title": q.prices.title,
            "date": q.prices.date,
            "items": [
                {"name": i.name, "value": i.value, "unit": i.unit} for i in q.prices.items.values()
            ],
        },
        "target": {
            "samples": t.samples,
            "step_time_s": t.step_time,
            "efficiency": t.efficiency,
            "samples_per_second": t.samples_per_second,
            "time_s": t.time,
            "budget": t.budget,
            "hourly": t.hourly,
            "minimise": t.minimise,
        },
        "choice": _offer_keys(answer, chosen) if chosen else None,
        "binds": [{"name": p.name, "share": p.share} for p in parts(chosen.candidate)]
        if chosen
        else [],
        "options": [_offer_keys(answer, each) for each in answer.offers],
        "frontier": [label(each.candidate.key) for each in answer.frontier],
        "efficiency_holds": [_reach_keys(reach) for reach in answer.reaches],
        "sensitivity": [_assumption_keys(a) for a in answer.assumptions],
        "refused": [{"option": name, "reason": reason} for name, reason in answer.refused],
        "waiting": list(answer.waiting),
        "notes": list(answer.notes),
        "complete": answer.complete,
    }


def _offer_keys(answer: Answer, each: Offer) -> dict[str, Any]:
    c = each.candidate
    return {
        "option": label(c.key),
        **{
            name: int(part) if name == "nodes" else part
            for name, part in zip(NAMES, c.key, strict=True)
        },
        "gpus": c.devices,
        "step_time_s": c.step,
        "step_low_s": c.low,
        "step_high_s": c.high,
        "simulated_s": c.simulated,
        "compute_s": c.compute,
        "exposed_s": c.exposed,
        "efficiency": c.efficiency,
        "goodput": c.goodput,
        "samples_per_second": c.rate if math.isfinite(c.rate) else None,
        "hourly": each.hourly,
        "time_s": each.time if math.isfinite(each.time) else None,
        "cost": each.cost if math.isfinite(each.cost) else None,
        "pays": dict(c.quantities),
        "bottleneck": c.bound,
        "misses": list(each.misses),
        "on_frontier": each in answer.frontier,
    }


def _reach_keys(reach: Reach) -> dict[str, Any]:
    def end(each: Candidate | None) -> dict[str, Any] | None:
        return {"nodes": each.nodes, "efficiency": each.efficiency} if each else None

    return {
        "series": {n: part for n, part in zip(NAMES, reach.series, strict=True) if part},
        "up_to": end(reach.last),
        "below_at": end(reach.first_below),
    }


def _assumption_keys(a: Assumption) -> dict[str, Any]:
    def flip(each: Flip | None) -> dict[str, Any] | None:
        if each is None:
            return None
        return {"at": each.at, "becomes": None if each.becomes is None else label(each.becomes)}

    return {
        "assumption": a.name,
        "value": a.value,
        "unit": a.unit,
        "below": flip(a.down),
        "above": flip(a.up),
        "within": a.within,
        "tolerance": a.tolerance,
        "holds_down_to": a.holds[0] if a.holds else None,
        "holds_up_to": a.holds[1] if a.holds else None,
        "complete": a.complete,
    }
