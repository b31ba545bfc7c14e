"""The same semantics as `processes` for plain delays, as one loop over arrays: a thousand
repetitions in seconds.

Where nothing contends, a run is decided by who arrives when, and every worker, every variable and
the chief have one event to come at most: a gradient arrives (worker w: item w), the global step
goes up (item W), a round of the chief begins (variable v: item W + 1 + v), a worker asks for a
token (item W + 1 + V + w) or comes back (item W + 1 + V + W + w). The least of (time, item) is
next, which is the order of `processes`; a tournament tree finds it. That both give the same run, to
the bit, is what `tests/training/test_recurrence.py` is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from simreduce.arrays import Floats, Ints
from simreduce.engine.kernel import compiled
from simreduce.errors import InternalError
from simreduce.training.replicas.job import ReplicasJob
from simreduce.training.replicas.network import Delays

_WORTH = 20_000
"""Steps of workers that take longer as they stand than to load numba and the compiled loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Each:
    """By [worker, step, variable], when a gradient arrived (NaN: it did not) and which update it
    entered, from 1 (0: dropped); by [worker, step], `local_step`.
    """

    arrived: Floats
    entered: Ints
    local_step: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """One run. `update[u]` is when update u + 1 was made, of as many as were, and `gradients[u]`
    how many are in the means of all variables; how many gradients arrived, and how many of these
    were dropped; and every single one, if asked for.
    """

    update: Floats
    gradients: Ints
    arrived: int
    dropped: int
    each: Each | None


class Runs:
    """Repetitions of one job, whose network is plain delays."""

    def __init__(self, job: ReplicasJob, updates: int, repetitions: int) -> None:
        self.job, self.updates = job, updates
        settings = job.settings
        per_worker = updates * settings.tokens_per_step / job.workers
        self._steps = int(1.25 * per_worker) + settings.initial_tokens + 16
        worth = self._steps * job.workers * job.variables * repetitions >= _WORTH
        self._loop: Any = compiled.single(loop) if worth else loop

    def run(self, repetition: int, *, each: bool = False) -> Times:
        """As `replicas` has it, without numbers. `each`: with every gradient, of which there may be
        many.
        """
        job, network = self.job, self.job.network
        if not isinstance(network, Delays):
            raise InternalError("flows take more than delays")
        settings, workers, variables = job.settings, job.workers, job.variables
        death = np.array([job.death(w) for w in range(workers)])
        back = np.array([job.back(w) for w in range(workers)])
        while True:
            shape = (workers, self._steps, variables) if each else (0, 0, 0)
            update, gradients = np.full(self.updates, np.nan), np.zeros(self.updates, np.int64)
            totals = np.zeros(2, np.int64)
            every = Each(
                np.full(shape, np.nan), np.zeros(shape, np.int64), np.zeros(shape[:2], np.int64)
            )
            made = self._loop(
                job.seconds(repetition, self._steps), network.pull, network.push,
                np.argsort(network.push, axis=1, kind="stable"), network.report, network.token, network.again,
                death, back, job.update, job.averages + job.turn, settings.replicas_to_aggregate,
                settings.tokens_per_step, settings.initial_tokens,
                update, gradients, totals, each, every.arrived, every.entered, every.local_step,
            )  # fmt: skip
            if made >= 0:
                arrived, dropped = totals.tolist()
                return Times(
                    update[:made], gradients[:made], arrived, dropped, every if each else None
                )
            self._steps *= 2


def loop(
    compute: Floats, pull: Floats, push: Floats, order: Ints, report: Floats, token: Floats, again: Floats, death: Floats,
    back: Floats, update: float, rest: float, required: int, per_step: int, initial: int, update_time: Floats,
    gradients: Ints, totals: Ints, each: bool, arrived: Floats, entered: Ints, local_step: Ints,
) -> int:  # fmt: skip
    """Fill what a `Times` has (`totals` are those that arrived and were dropped), the last three
    only with `each`; how many updates were made, or -1 if a worker has no more times to compute.
    `order[w]` are the variables in the order in which the gradients of worker w arrive.
    """
    workers, steps = compute.shape
    variables, updates = len(report), len(update_time)
    sync, begin, ask = workers, workers + 1, workers + 1 + variables
    again_there = ask + workers
    items = again_there + workers
    leaves = 1
    while leaves < items:
        leaves *= 2
    due = np.full(leaves, inf)  # when each item is
    winner = np.empty(2 * leaves, np.int64)  # of the two below; the first of equals
    for i in range(leaves):
        winner[leaves + i] = i
    changed = np.empty(2 * items, np.int64)

    step = np.zeros(workers, np.int64)  # of each worker, by its own count
    local = np.zeros(workers, np.int64)
    until = death.copy()  # each lives
    computed = np.empty(workers)
    sent = np.zeros(workers, np.int64)  # gradients of this step that have arrived
    delivered = np.zeros(workers)  # when the queue knows of all of them
    taken = np.zeros(variables, np.int64)  # the accumulators' own steps
    count = np.zeros(variables, np.int64)
    asked = np.zeros(variables, np.bool_)  # by the chief
    meant = np.zeros(variables, np.int64)  # gradients in the mean that it last got
    left, synced = (
        variables,
        0.0,
    )  # variables that are not updated in this round, and when the others were
    made = 0
    # The queue, as so many tokens of one step after another: those at first, of each update, and of
    # a chief that is back.
    token_step, tokens_left = np.zeros(updates + 2, np.int64), np.zeros(updates + 2, np.int64)
    tokens_left[0] = initial
    first_token, end_token = 0, 1
    waiting = np.empty(workers, np.int64)
    first_waiting, waiters = 0, 0

    for w in range(workers):
        computed[w] = pull[w] + compute[w, 0]
        due[w] = computed[w] + push[w, order[w, 0]]
        due[again_there + w] = back[w]
    for v in range(variables):
        due[begin + v] = 0.0
    for node in range(leaves - 1, 0, -1):
        a, b = winner[2 * node], winner[2 * node + 1]
        winner[node] = a if due[a] <= due[b] else b

    while True:
        item = winner[1]
        now = due[item]
        if now == inf:
            return made
        due[item] = inf
        changed[0] = item
        changes = 1
        v = -1
        if item < sync:  # a gradient arrives
            w = item
            if now < until[w]:
                v, s = order[w, sent[w]], step[w]
                totals[0] += 1
                if each:
                    arrived[w, s, v] = now
                if local[w] >= taken[v]:
                    if each:
                        entered[w, s, v] = taken[v] + 1
                    count[v] += 1
                else:
                    totals[1] += 1
                delivered[w] = max(delivered[w], now + report[v])
                sent[w] += 1
                if sent[w] == variables:
                    due[ask + w] = delivered[w]
                    changed[changes] = ask + w
                    changes += 1
                else:
                    due[w] = computed[w] + push[w, order[w, sent[w]]]
        elif item == sync:
            if now < until[0]:
                update_time[made] = now
                for u in range(variables):
                    gradients[made] += meant[u]
                made += 1
                if made == updates:
                    return made
                token_step[end_token], tokens_left[end_token] = made, per_step
                end_token += 1
                left, synced = variables, 0.0
                for u in range(variables):
                    due[begin + u] = now + rest + again[u]
                    changed[changes] = begin + u
                    changes += 1
        elif item < ask:  # a round begins
            v = item - begin
            asked[v] = True
        elif item < again_there:
            w = item - ask
            if now < until[w]:
                waiting[(first_waiting + waiters) % workers] = w
                waiters += 1
        else:  # a worker is back; what it was about to do is not done
            w = item - again_there
            until[w] = inf
            due[ask + w] = inf
            others = 0
            for i in range(waiters):
                other = waiting[(first_waiting + i) % workers]
                if other != w:
                    waiting[(first_waiting + others) % workers] = other
                    others += 1
            waiters = others
            step[w] += 1
            if step[w] == steps:
                return -1
            local[w] = made
            if each:
                local_step[w, step[w]] = made
            sent[w], delivered[w] = 0, 0.0
            computed[w] = now + pull[w] + compute[w, step[w]]
            due[w] = computed[w] + push[w, order[w, 0]]
            changed[changes], changed[changes + 1] = w, ask + w
            changes += 2
            if w == 0:
                token_step[end_token], tokens_left[end_token] = made, initial
                end_token += 1
                left, synced = variables, 0.0
                due[sync] = inf
                changed[changes] = sync
                changes += 1
                for u in range(variables):
                    taken[u], asked[u] = made, False
                    due[begin + u] = now
                    changed[changes] = begin + u
                    changes += 1

        if v >= 0 and asked[v] and count[v] >= required and now < until[0]:
            asked[v] = False
            taken[v] += 1
            meant[v] = count[v]
            count[v] = 0
            left -= 1
            synced = max(synced, now + update + report[v])
            if left == 0:
                due[sync] = synced
                changed[changes] = sync
                changes += 1
        while waiters > 0:
            while first_token < end_token and tokens_left[first_token] == 0:
                first_token += 1
            if first_token == end_token:
                break
            w = waiting[first_waiting]
            first_waiting = (first_waiting + 1) % workers
            waiters -= 1
            if now >= until[w]:
                continue
            local[w] = token_step[first_token]
            tokens_left[first_token] -= 1
            step[w] += 1
            if step[w] == steps:
                return -1
            if each:
                local_step[w, step[w]] = local[w]
            sent[w], delivered[w] = 0, 0.0
            computed[w] = now + token[w] + pull[w] + compute[w, step[w]]
            due[w] = computed[w] + push[w, order[w, 0]]
            changed[changes] = w
            changes += 1
        for i in range(changes):
            node = (leaves + changed[i]) >> 1
            while node > 0:
                a, b = winner[2 * node], winner[2 * node + 1]
                winner[node] = a if due[a] <= due[b] else b
                node >>= 1
