"""The semantics of `processes` for plain delays, as a loop over arrays: a thousand repetitions in
seconds.

Without contention, arrival times decide a run, and every worker, every variable and the chief has
at most one pending event. Each has an item in a calendar, for W workers and V variables:

    item               event
    w                  a gradient of worker w arrives
    W                  the global step goes up
    W + 1 + v          the chief begins a round of variable v
    W + 1 + V + w      worker w asks for a token
    W + 1 + V + W + w  worker w comes back

The least (time, item) is next, which is the order of `processes`. A tournament tree finds it.
tests/training/test_recurrence.py holds both to the same run, bit for bit.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing.arrays import Bools, Floats, Ints
from simreduce.computing.loops import native
from simreduce.training.replicas import ReplicasJob
from simreduce.training.replicas.network import Delays

_WORTH = 20_000
"""Worker steps that take longer interpreted than loading numba and the compiled loop."""


class DelayRuns:
    """Repetitions of one job whose network is plain delays."""

    def __init__(self, job: ReplicasJob, updates: int, repetitions: int) -> None:
        self.job, self.updates = job, updates
        settings = job.settings
        per_worker = updates * settings.tokens_per_step / job.workers
        self._steps = int(1.25 * per_worker) + settings.initial_tokens + 16
        worth = self._steps * job.workers * job.variables * repetitions >= _WORTH
        self._loop: Any = native(loop, "the loop of replicas") if worth else loop
        self._rules = _rules(job)

    def run(self, repetition: int, *, log: bool = False) -> RunOutcome:
        """As `simulate_replicas` without values. `log` keeps every gradient."""
        job = self.job
        while True:
            rules = self._rules._replace(compute=job.seconds(repetition, self._steps))
            state = _state(job, self.updates)
            shape = job.workers, self._steps if log else 0, job.variables
            out = RunOutcome(
                np.full(self.updates, np.nan), np.zeros(self.updates, np.int64),
                np.zeros(2, np.int64),
                np.full(shape, np.nan), np.zeros(shape, np.int64), np.zeros(shape[:2], np.int64),
            )  # fmt: skip
            if self._loop(rules, state, out) >= 0:
                return out
            self._steps *= 2


class Rules(NamedTuple):
    """A job as arrays; seconds. Gradients of worker w arrive in the order `order[w]`."""

    compute: Floats  # [worker, step]
    pull: Floats
    push: Floats
    order: Ints
    report: Floats
    token: Floats
    again: Floats
    back: Floats
    update: float
    rest: float  # between an update and the next round
    required: int  # gradients
    per_step: int  # tokens
    initial: int  # tokens


class RunState(NamedTuple):
    """The mutable state of a run: the calendar, the workers, the variables, the token queue.

    The queue holds runs of equal tokens: the initial ones, the tokens of each update, and the
    tokens of a chief that came back. `requests` is a ring buffer of workers.
    """

    due: Floats  # by item
    winner: Ints  # of the two nodes below; the first of equals
    step: Ints  # of each worker, by its own count
    local_step: Ints
    until: Floats  # each worker lives
    computed: Floats
    sent: Ints  # gradients of this step that have arrived
    delivered: Floats  # when the queue knows of all of them
    taken: Ints  # means taken from each accumulator
    added: Ints  # gradients in it
    awaited: Bools  # by the chief
    entered: Ints  # gradients in the last mean
    token_step: Ints
    tokens_left: Ints
    requests: Ints
    cursor: Ints  # see the indices below
    synced: Floats  # [0]: when all variables updated so far in this round were


MADE, LEFT, FIRST_TOKEN, END_TOKEN, FIRST_REQUEST, REQUESTS = range(6)
"""Indices of `RunState.cursor`: updates made, variables left to update in this round, the queue."""


class RunOutcome(NamedTuple):
    """The record of a run; the last three are empty without a log."""

    update: Floats  # when update u + 1 was made; NaN for never
    gradients: Ints  # in its means, over all variables
    totals: Ints  # gradients that arrived, that were dropped
    arrived: Floats  # [worker, step, variable]: when; NaN for never
    entered: Ints  # [worker, step, variable]: the update, from 1; 0 if dropped
    local_step: Ints  # [worker, step]


def _rules(job: ReplicasJob) -> Rules:
    """The job, without times to compute: every repetition has its own."""
    network, settings = job.network, job.settings
    assert isinstance(network, Delays)  # noqa: S101 - flows take more
    back = np.array([job.returns.get(w, inf) for w in range(job.workers)])
    order = np.argsort(network.push, axis=1, kind="stable")
    return Rules(
        np.zeros((job.workers, 0)), network.pull, network.push, order,
        *network.messages, back, job.update, job.averages + job.turn,
        settings.replicas_to_aggregate, settings.tokens_per_step, settings.initial_tokens,
    )  # fmt: skip


def _state(job: ReplicasJob, updates: int) -> RunState:
    """The state before anything happens, with an empty calendar."""
    workers, variables = job.workers, job.variables
    leaves = 1 << (3 * workers + variables).bit_length()
    winner = np.empty(2 * leaves, np.int64)
    winner[leaves:] = np.arange(leaves)

    def zeros(length: int) -> Ints:
        return np.zeros(length, np.int64)

    return RunState(
        due=np.full(leaves, inf), winner=winner,
        step=zeros(workers), local_step=zeros(workers),
        until=np.array([job.dies.get(w, inf) for w in range(workers)]), computed=np.zeros(workers),
        sent=zeros(workers), delivered=np.zeros(workers),
        taken=zeros(variables), added=zeros(variables), awaited=np.zeros(variables, np.bool_),
        entered=zeros(variables),
        token_step=zeros(updates + 2), tokens_left=zeros(updates + 2), requests=zeros(workers),
        cursor=zeros(6), synced=np.zeros(1),
    )  # fmt: skip


def loop(rules: Rules, state: RunState, out: RunOutcome) -> int:
    """Run until every update is made or nothing is pending. The number of updates; -1 if a worker
    needs more steps than `rules.compute` has.
    """
    workers, variables = len(rules.pull), len(rules.report)
    begin, ask = workers + 1, workers + 1 + variables
    back = ask + workers
    start(rules, state)
    while True:
        item = state.winner[1]
        now = state.due[item]
        if now == inf:
            return int(state.cursor[MADE])
        state.due[item] = inf
        enough = True
        if item < workers:
            arrive(rules, state, out, item, now)
        elif item == workers:
            if now < state.until[0] and sync(rules, state, out, now):
                return int(state.cursor[MADE])
            enough = hand_out(rules, state, out, now)
        elif item < ask:
            state.awaited[item - begin] = True
            take(rules, state, item - begin, now)
        elif item < back:
            if now < state.until[item - ask]:
                queue_up(state, item - ask)
            enough = hand_out(rules, state, out, now)
        else:
            enough = come_back(rules, state, out, item - back, now)
            enough = enough and hand_out(rules, state, out, now)
        if not enough:
            return -1
        replay(state, item)


def start(rules: Rules, state: RunState) -> None:
    """Every worker has begun its first step, and the chief its first round."""
    workers, variables = len(rules.pull), len(rules.report)
    put_tokens(state, 0, rules.initial)
    state.cursor[LEFT] = variables
    for w in range(workers):
        state.computed[w] = rules.pull[w] + rules.compute[w, 0]
        state.due[w] = state.computed[w] + rules.push[w, rules.order[w, 0]]
        state.due[2 * workers + 1 + variables + w] = rules.back[w]
    state.due[workers + 1 : workers + 1 + variables] = 0.0
    winner, due = state.winner, state.due
    for node in range(len(due) - 1, 0, -1):
        a, b = winner[2 * node], winner[2 * node + 1]
        winner[node] = a if due[a] <= due[b] else b


def arrive(rules: Rules, state: RunState, out: RunOutcome, w: int, now: float) -> None:
    """The next gradient of worker w is at its accumulator."""
    if now >= state.until[w]:
        return
    variables = len(rules.report)
    v, s = rules.order[w, state.sent[w]], state.step[w]
    out.totals[0] += 1
    if out.arrived.size > 0:
        out.arrived[w, s, v] = now
    if state.local_step[w] >= state.taken[v]:
        if out.entered.size > 0:
            out.entered[w, s, v] = state.taken[v] + 1
        state.added[v] += 1
    else:
        out.totals[1] += 1
    state.delivered[w] = max(state.delivered[w], now + rules.report[v])
    state.sent[w] += 1
    if state.sent[w] == variables:
        schedule(state, len(rules.pull) + 1 + variables + w, state.delivered[w])
    else:
        state.due[w] = state.computed[w] + rules.push[w, rules.order[w, state.sent[w]]]
    take(rules, state, v, now)


def take(rules: Rules, state: RunState, v: int, now: float) -> None:
    """Hand the mean of variable v to the chief, if it waits and there are enough gradients."""
    if not (state.awaited[v] and state.added[v] >= rules.required and now < state.until[0]):
        return
    state.awaited[v] = False
    state.taken[v] += 1
    state.entered[v] = state.added[v]
    state.added[v] = 0
    state.cursor[LEFT] -= 1
    state.synced[0] = max(state.synced[0], now + rules.update + rules.report[v])
    if state.cursor[LEFT] == 0:
        schedule(state, len(rules.pull), state.synced[0])


def sync(rules: Rules, state: RunState, out: RunOutcome, now: float) -> bool:
    """The global step goes up, and the chief goes on to the next round; True after the last."""
    workers, variables, made = len(rules.pull), len(rules.report), state.cursor[MADE]
    out.update[made] = now
    out.gradients[made] = state.entered.sum()
    made += 1
    state.cursor[MADE] = made
    if made == len(out.update):
        return True
    put_tokens(state, made, rules.per_step)
    state.cursor[LEFT], state.synced[0] = variables, 0.0
    for v in range(variables):
        schedule(state, workers + 1 + v, now + rules.rest + rules.again[v])
    return False


def come_back(rules: Rules, state: RunState, out: RunOutcome, w: int, now: float) -> bool:
    """Worker w begins a step at the global step; what it had pending is not done. The chief also
    resets accumulators and queue, and begins a round. False if w needs more steps.
    """
    workers, variables, made = len(rules.pull), len(rules.report), state.cursor[MADE]
    state.until[w] = inf
    schedule(state, workers + 1 + variables + w, inf)
    leave_queue(state, w)
    if not begin_step(rules, state, out, w, made, now):
        return False
    if w == 0:
        put_tokens(state, made, rules.initial)
        state.cursor[LEFT], state.synced[0] = variables, 0.0
        schedule(state, workers, inf)
        for v in range(variables):
            state.taken[v], state.awaited[v] = made, False
            schedule(state, workers + 1 + v, now)
    return True


def begin_step(
    rules: Rules, state: RunState, out: RunOutcome, w: int, local_step: int, now: float
) -> bool:
    """Worker w begins a step with this `local_step`; False if there are no times for it."""
    state.step[w] += 1
    step = state.step[w]
    if step == rules.compute.shape[1]:
        return False
    state.local_step[w] = local_step
    if out.local_step.size > 0:
        out.local_step[w, step] = local_step
    state.sent[w], state.delivered[w] = 0, 0.0
    state.computed[w] = now + rules.pull[w] + rules.compute[w, step]
    schedule(state, w, state.computed[w] + rules.push[w, rules.order[w, 0]])
    return True


def put_tokens(state: RunState, step: int, count: int) -> None:
    """`count` tokens of one step into the queue."""
    end = state.cursor[END_TOKEN]
    state.token_step[end], state.tokens_left[end] = step, count
    state.cursor[END_TOKEN] = end + 1


def queue_up(state: RunState, w: int) -> None:
    """Worker w waits for a token, after all others."""
    cursor = state.cursor
    state.requests[(cursor[FIRST_REQUEST] + cursor[REQUESTS]) % len(state.requests)] = w
    cursor[REQUESTS] += 1


def leave_queue(state: RunState, w: int) -> None:
    """Worker w waits no longer."""
    first, others, length = state.cursor[FIRST_REQUEST], 0, len(state.requests)
    for i in range(state.cursor[REQUESTS]):
        other = state.requests[(first + i) % length]
        if other != w:
            state.requests[(first + others) % length] = other
            others += 1
    state.cursor[REQUESTS] = others


def hand_out(rules: Rules, state: RunState, out: RunOutcome, now: float) -> bool:
    """Give tokens to waiting workers, first come, first served; False if one needs more steps."""
    cursor = state.cursor
    while cursor[REQUESTS] > 0:
        token = cursor[FIRST_TOKEN]
        while token < cursor[END_TOKEN] and state.tokens_left[token] == 0:
            token += 1
        cursor[FIRST_TOKEN] = token
        if token == cursor[END_TOKEN]:
            break
        w = state.requests[cursor[FIRST_REQUEST]]
        cursor[FIRST_REQUEST] = (cursor[FIRST_REQUEST] + 1) % len(state.requests)
        cursor[REQUESTS] -= 1
        if now < state.until[w]:
            state.tokens_left[token] -= 1
            sent = now + rules.token[w]
            if not begin_step(rules, state, out, w, state.token_step[token], sent):
                return False
    return True


def schedule(state: RunState, item: int, time: float) -> None:
    """An item's next event is at `time`; inf for none."""
    state.due[item] = time
    replay(state, item)


def replay(state: RunState, item: int) -> None:
    """Play all matches of an item whose time has changed."""
    winner, due = state.winner, state.due
    best, time = item, due[item]
    node = len(due) + item
    while node > 1:
        other = winner[node ^ 1]
        theirs = due[other]
        first = (theirs < time) | ((theirs == time) & (other < best))
        best, time = other if first else best, theirs if first else time
        node >>= 1
        winner[node] = best
