"""The fabric among SimPy processes: it may run ahead, but nobody can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from math import inf, nextafter
from pathlib import Path

import numpy as np
import pytest
import simpy
from hypothesis import given, settings

import simreduce as sr
from simreduce.engine import IDEAL, NOMINAL, TENSORFLOW, Calibration, Fabric, Timeline
from simreduce.errors import Deadlock, InputError, InternalError, TopologyError
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.testing import ELEMENTS, NO_CONTRACT, cable, copy_plan, machine, pair, plan_of
from simreduce.testing.strategies import ROUND, scenes, with_controls
from simreduce.topology import Topology, load_topology
from tests.simulating import bits, simulate, xring_on_a_dgx1
from tests.thorough import examples


class Day:
    """An environment with a fabric, in which things are done at given times."""

    def __init__(self, topology: Topology, runtime=TENSORFLOW, begin: float = 0.0) -> None:
        self.env = simpy.Environment(begin)
        self.fabric = Fabric(self.env, topology, NOMINAL, runtime)
        self.done: dict[str, tuple[float, Timeline]] = {}

    def at(self, time: float, action, *arguments) -> Day:
        def process():
            yield self.env.timeout(time - self.env.now)
            action(*arguments)

        self.env.process(process())
        return self

    def submit(self, name: str, plan: Plan, at: float = 0.0, ready=0.0) -> Day:
        def process():
            yield self.env.timeout(at - self.env.now)
            timeline = yield self.fabric.submit(plan, ready)
            self.done[name] = (self.env.now, timeline)

        self.env.process(process())
        return self

    def cut(self, time: float, link: str, bandwidth: float = 0.0) -> Day:
        return self.at(time, self.fabric.set_bandwidth, link, bandwidth)

    def run(self) -> dict[str, float]:
        """When each plan was done, by name."""
        self.env.run()
        return {name: now for name, (now, _) in self.done.items()}


# Running ahead.


def test_a_thousand_idle_timeouts_change_no_bit():
    """Other events cut the run into pieces; some come at the very instants of the plan, or one ulp
    beside them.
    """
    plan, topology = xring_on_a_dgx1()
    alone = simulate(plan, topology).timeline
    end = float(alone.finish.max())
    day = Day(topology).submit("plan", plan)
    moments = [*np.linspace(0.0, end, 400), *np.random.default_rng(1).choice(alone.finish, 200)]
    moments += [nextafter(t, inf) for t in moments[400:]] + [
        nextafter(t, 0.0) for t in moments[400:600]
    ]
    for moment in moments:
        day.env.timeout(moment)
    day.run()

    assert len(moments) == 1000
    assert bits(alone) == bits(day.done["plan"][1])


def test_stopping_the_environment_and_going_on_changes_no_bit():
    """`env.run(until=...)` in the middle of a plan."""
    plan, topology = xring_on_a_dgx1()
    alone = simulate(plan, topology).timeline
    day = Day(topology).submit("plan", plan)
    for part in (0.1, 0.5, 0.9):
        day.env.run(until=part * float(alone.finish.max()))
    day.run()

    assert bits(alone) == bits(day.done["plan"][1])


@given(scenes(ROUND))
@settings(max_examples=examples(50))
def test_the_event_happens_when_the_last_op_is_done(scene):
    """To the bit, also on a clock that does not begin at 0; the plan's times are of that clock."""
    env = simpy.Environment(initial_time=0.1)
    fabric = Fabric(env, scene.topology, scene.calibration, scene.runtime)
    timeline = env.run(until=fabric.submit(scene.plan, scene.ready))

    assert env.now == timeline.finish.max()


def odd_clocks() -> list[float]:
    """Times from which an end one to two seconds later is hard to reach: now + (end - now) may
    round beside it.
    """
    return np.random.default_rng(2).uniform(0.25, 0.5, 60).tolist()


def test_the_event_happens_to_the_bit_wherever_the_clock_stands():
    """Not an ulp before or after the end."""
    topology = pair(bandwidth=647.0, latency=0.61)
    days = [
        Day(topology, begin=t).submit("plan", copy_plan(topology, (0, 1)), at=t)
        for t in odd_clocks()
    ]
    happened = [day.run()["plan"] for day in days]

    assert [float(day.done["plan"][1].finish[1]) for day in days] == happened


def test_whoever_waited_for_a_plan_may_submit_the_next_at_once():
    """The fabric is not ahead of the event it has let happen."""
    topology = pair(bandwidth=647.0, latency=0.61)
    plan = copy_plan(topology, (0, 1))

    def twice(day: Day):
        yield day.fabric.submit(plan)
        yield day.fabric.submit(plan)

    for begin in odd_clocks():
        day = Day(topology, begin=begin)
        day.env.run(until=day.env.process(twice(day)))

        assert day.env.now == pytest.approx(begin + 2 * (0.61 + 400 / 647), rel=1e-12)


def test_a_plan_that_follows_another_begins_where_that_ended():
    """4 s each, on one fabric, with an idle time between."""
    topology = pair()
    plan = copy_plan(topology, (0, 1))
    day = Day(topology)

    def process():
        for name in ("first", "second"):
            timeline = yield day.fabric.submit(plan)
            day.done[name] = (day.env.now, timeline)
        yield day.env.timeout(2.0)
        timeline = yield day.fabric.submit(plan)
        day.done["third"] = (day.env.now, timeline)

    day.env.process(process())

    assert day.run() == {"first": 4.0, "second": 8.0, "third": 14.0}


def test_a_plan_submitted_during_another_shares_with_it_from_then_on():
    """The first has moved 100 B alone at 1 s; 300 B at half the rate end at 7 s. The second has 100
    B left then.
    """
    topology = pair()
    plan = copy_plan(topology, (0, 1))
    day = Day(topology, IDEAL).submit("first", plan).submit("second", plan, at=1.0)

    assert day.run() == {"first": 7.0, "second": 8.0}


# Ties between plans.


def test_plans_that_want_a_lane_at_once_get_it_in_the_order_of_submission():
    """All are ready at 1 s. The earlier plan's copies come first, in program order, then the later
    plan's.
    """
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2"))
    both = copy_plan(topology, (0, 2), (0, 1))
    day = Day(topology).submit("first", both, ready=1.0).submit("second", both, at=0.5, ready=0.5)
    day.run()

    assert day.done["first"][1].start[[1, 3]].tolist() == [1.0, 5.0]
    assert day.done["second"][1].start[[1, 3]].tolist() == [9.0, 13.0]


def test_an_op_that_is_ready_earlier_goes_before_an_earlier_submission():
    """The lane serves in order of readiness; submissions only break ties."""
    topology = pair()
    plan = copy_plan(topology, (0, 1))
    day = Day(topology).submit("first", plan, ready=1.0).submit("second", plan, ready=0.5)

    assert day.run() == {"second": 4.5, "first": 8.5}


def test_blame_counts_within_the_plan():
    """An op of the second plan waited for the lane that an op of the first had: nobody of its own
    is to blame.
    """
    topology = pair()
    plan = copy_plan(topology, (0, 1), (0, 1))
    day = Day(topology).submit("first", plan).submit("second", plan)
    day.run()

    assert day.done["first"][1].blame.tolist() == [-1, 0, -1, 1]
    assert day.done["second"][1].blame.tolist() == [-1, -1, -1, 1]


# The window of an instant.


def copies_that_want_one_lane(first: float, second: float) -> list[float]:
    """Starts of two copies on one lane. The first, by id, is ready after 0.1 s, 0.2 s and `first`;
    the other at `second`.
    """
    topology = pair()

    def write(b: PlanBuilder) -> None:
        x = b.input(0, 0, 100)
        b.copy(b.slice(x, 0, 100), 1)
        b.copy(b.input(0, 100, 200), 1)

    plan = plan_of(topology, write)
    steps = Calibration("steps", dispatch={"slice": 0.2})
    return (
        simulate(plan, topology, TENSORFLOW, steps, np.array([0.1 + first, second]))
        .start[[2, 4]]
        .tolist()
    )


def test_what_is_due_within_four_ulp_happens_at_once():
    """0.1 + 0.2 is one ulp more than 0.3. They tie, at the earlier time, and the lower id goes
    first.
    """
    assert 0.1 + 0.2 > 0.3

    assert copies_that_want_one_lane(0.0, 0.3) == [0.3, 4.3]


def test_what_is_due_later_than_four_ulp_is_later():
    """0.6 femtoseconds are eleven ulp here: the copy that is ready first goes first, whatever its
    id.
    """
    assert copies_that_want_one_lane(6e-16, 0.3) == [4.3, 0.3]


# Faults.


def test_a_link_that_is_cut_and_mended_moves_the_rest_afterwards():
    """100 of 400 B are through at 1 s; the other 300 B take 3 s from 3 s on."""
    day = Day(topology := pair()).submit("plan", copy_plan(topology, (0, 1)))
    day.cut(1.0, "gpu0>gpu1").cut(3.0, "gpu0>gpu1", 100.0)

    assert day.run() == {"plan": 6.0}


def test_a_slower_link_is_slower_from_then_on():
    """300 B at 50 B/s from 1 s on."""
    day = (
        Day(topology := pair())
        .submit("plan", copy_plan(topology, (0, 1)))
        .cut(1.0, "gpu0>gpu1", 50.0)
    )

    assert day.run() == {"plan": 7.0}


def test_a_copy_that_comes_to_a_dead_link_waits_for_it():
    """Cut before the copy begins, mended at 5 s."""
    day = Day(topology := pair()).submit("plan", copy_plan(topology, (0, 1)), ready=2.0)
    day.cut(1.0, "gpu0>gpu1").cut(5.0, "gpu0>gpu1", 100.0)

    assert day.run() == {"plan": 9.0}


def test_a_link_cut_while_nothing_runs_is_cut_for_the_next_plan():
    """The change outlives the plans."""
    day = Day(topology := pair()).submit("first", copy_plan(topology, (0, 1)))
    day.cut(5.0, "gpu0>gpu1", 25.0).submit("second", copy_plan(topology, (0, 1)), at=6.0)

    assert day.run() == {"first": 4.0, "second": 22.0}


def test_a_cut_harms_only_its_own_direction():
    """The way back moves on."""
    day = Day(topology := pair()).submit("there", copy_plan(topology, (0, 1)))
    day.submit("back", copy_plan(topology, (1, 0))).cut(1.0, "gpu0>gpu1").cut(
        11.0, "gpu0>gpu1", 100.0
    )

    assert day.run() == {"back": 4.0, "there": 14.0}


def test_latency_passes_on_a_dead_link():
    """The link is dead from 0 s to 3 s; 2 s of latency are over when it comes back."""
    day = Day(topology := pair(latency=2.0)).submit("plan", copy_plan(topology, (0, 1)))
    day.cut(0.0, "gpu0>gpu1").cut(3.0, "gpu0>gpu1", 100.0)

    assert day.run() == {"plan": 7.0}


def test_a_cut_at_the_instant_the_last_byte_moves_is_too_late():
    """A copy is done when its last byte has moved: at 4 s, whatever happens to the link then."""
    day = Day(topology := pair()).submit("plan", copy_plan(topology, (0, 1))).cut(4.0, "gpu0>gpu1")

    assert day.run() == {"plan": 4.0}


def test_a_cut_at_the_instant_the_last_byte_moves_is_too_late_though_rounding_leaves_a_rest():
    """A third of a second, counted in floats from 0.7 s on, does not come out even."""
    topology = pair(bandwidth=1200.0)
    alone = Day(topology).submit("plan", copy_plan(topology, (0, 1)), at=0.7)
    (end,) = alone.run().values()
    day = Day(topology).submit("plan", copy_plan(topology, (0, 1)), at=0.7).cut(end, "gpu0>gpu1")

    assert {"plan": end} == day.run()


def test_a_link_cut_for_ever_is_a_deadlock_that_names_op_and_link():
    """It never returns a short time."""
    day = Day(topology := pair()).submit("plan", copy_plan(topology, (0, 1))).cut(1.0, "gpu0>gpu1")

    with pytest.raises(
        Deadlock, match=r"op 1 COPY gpu0 -> gpu1 \[0, 100\): no bandwidth on gpu0>gpu1 wire"
    ):
        day.run()


def test_a_deadlock_counts_and_names_those_that_wait_behind_the_stuck_one():
    """The copy behind waits for the lane, the output for the copy."""
    topology = pair()

    def write(b: PlanBuilder) -> None:
        b.output(b.copy(b.input(0, 0, 100), 1))
        b.copy(b.input(0, 100, 200), 1)

    day = Day(topology).submit("plan", plan_of(topology, write)).cut(1.0, "gpu0>gpu1")
    with pytest.raises(Deadlock) as caught:
        day.run()

    assert str(caught.value).splitlines() == [
        "3 ops can never finish:",
        "  op 1 COPY gpu0 -> gpu1 [0, 100): no bandwidth on gpu0>gpu1 wire",
        "  op 2 OUTPUT gpu1 [0, 100): waits for 1 op before it",
        "  op 4 COPY gpu0 -> gpu1 [100, 200): waits for gpu0 device-to-device",
    ]


def test_no_deadlock_is_called_while_somebody_may_still_mend_the_link():
    """Events of others are awaited, however late."""
    day = Day(topology := pair()).submit("plan", copy_plan(topology, (0, 1)))
    day.cut(1.0, "gpu0>gpu1").at(500.0, int).cut(1000.0, "gpu0>gpu1", 100.0)

    assert day.run() == {"plan": 1003.0}


def test_a_control_edge_against_the_order_of_a_stream_is_a_deadlock():
    """The first op of the stream waits for the second, and that for its turn."""
    topology = pair()

    def write(b: PlanBuilder) -> None:
        for i in range(2):
            b.copy(b.input(0, i * 100, (i + 1) * 100), 1, stream=b.stream(0))

    plan = with_controls(plan_of(topology, write), [[], [3], [], []])
    with pytest.raises(
        Deadlock, match=r"op 1 COPY gpu0 -> gpu1 \[0, 100\): waits for 1 op before it"
    ):
        simulate(plan, topology)


# Misuse.


def test_a_second_fabric_in_an_environment_is_refused():
    """Two would not see each other's bytes."""
    day = Day(pair())

    with pytest.raises(InternalError, match="has a fabric already"):
        Fabric(day.env, pair())


def test_the_past_cannot_be_touched():
    """After one step by hand the fabric has run ahead to 4 s, while the clock still says 0."""
    topology = pair()
    day = Day(topology)
    day.fabric.submit(copy_plan(topology, (0, 1)))
    day.env.step()

    with pytest.raises(
        InternalError, match=r"the fabric is at 4\.0 s; it was touched at 0(\.0)? s"
    ):
        day.fabric.submit(copy_plan(topology, (0, 1)))
    with pytest.raises(InternalError, match="touched at 0"):
        day.fabric.set_bandwidth("gpu0>gpu1", 1.0)


def test_an_unknown_link_is_named_with_the_nearest_there_is():
    """And nothing is changed."""
    with pytest.raises(InputError, match=r"no link 'gpu0>gpu2' \(did you mean 'gpu0>gpu1'\?\)"):
        Day(pair()).fabric.set_bandwidth("gpu0>gpu2", 0.0)


@pytest.mark.parametrize("bandwidth", [-1.0, float("nan")])
def test_a_bandwidth_is_not_negative(bandwidth):
    """Nor is it no number."""
    with pytest.raises(InputError, match="the bandwidth must be 0 or more"):
        Day(pair()).fabric.set_bandwidth("gpu0>gpu1", bandwidth)


def test_devices_and_routes_that_the_machine_lacks_are_named():
    """Each with the nearest spelling, or with the reason."""
    wide = machine(cable("gpu0", "gpu1"), cable("gpu1", "gpu2"))

    with pytest.raises(InputError, match=r"needs a device 'gpu2' \(did you mean 'gpu1'\?\)"):
        simulate(copy_plan(wide, (0, 1)), pair())
    with pytest.raises(TopologyError, match="no route from 'gpu0' to 'gpu2'"):
        simulate(copy_plan(wide, (0, 2)), wide)


# What is submitted.


def test_every_input_has_its_own_time_of_readiness():
    """Counted from the submission, in program order."""
    topology = machine(cable("gpu0", "gpu1"), cable("gpu1", "gpu2"))
    plan = copy_plan(topology, (0, 1), (1, 2))
    day = Day(topology).submit("plan", plan, at=10.0, ready=np.array([3.0, 1.0]))
    day.run()

    assert day.done["plan"][1].start.tolist() == [13.0, 13.0, 11.0, 11.0]
    assert day.done["plan"][1].finish.tolist() == [13.0, 17.0, 11.0, 15.0]


@given(scenes(ROUND))
@settings(max_examples=examples(60))
def test_inputs_that_are_released_are_as_those_that_were_announced(scene):
    """Every second INPUT is held and released when the others' times come: the same bits."""
    inputs = int((scene.plan.kind == sr.plan.Kind.INPUT).sum())
    times = np.broadcast_to(np.asarray(scene.ready, dtype=np.float64), inputs)
    held = np.arange(0, inputs, 2)

    def timeline(released: bool) -> Timeline | str:
        env = simpy.Environment()
        fabric = Fabric(env, scene.topology, scene.calibration, scene.runtime)
        done = fabric.submit(scene.plan, times, held=held if released else None)
        if released:
            for place in held.tolist():
                env.timeout(times[place]).callbacks.append(
                    lambda _, place=place: fabric.release(done, np.array([place]))
                )
        try:
            return env.run(until=done)
        except Deadlock as stuck:
            return str(stuck)

    announced, released = timeline(False), timeline(True)
    if isinstance(announced, str):
        assert announced == released
        return
    assert announced.finish.tolist() == released.finish.tolist()
    assert announced.ready.tolist() == released.ready.tolist()


def test_an_input_that_nobody_releases_is_a_deadlock():
    """Its reader waits for ever."""
    topology = pair()
    env = simpy.Environment()
    done = Fabric(env, topology).submit(copy_plan(topology, (0, 1)), held=np.array([0]))

    with pytest.raises(Deadlock, match="waits for"):
        env.run(until=done)


def test_a_plan_without_ops_is_done_at_once():
    """At the time of its submission, with an empty timeline."""
    nothing = PlanBuilder(("gpu0",)).finish(NO_CONTRACT)
    day = Day(pair()).submit("plan", nothing, at=2.0)

    assert day.run() == {"plan": 2.0}
    assert len(day.done["plan"][1].finish) == 0
    assert simulate(nothing, pair()).seconds == 0.0


def test_values_without_bytes_take_the_latency_alone():
    """An empty copy moves nothing and waits for nobody's bytes."""
    topology = pair(latency=2.0)

    def write(b: PlanBuilder) -> None:
        b.copy(b.input(0, 0, ELEMENTS), 1)
        b.copy(b.input(0, 0, 0), 1)

    timeline = simulate(plan_of(topology, write), topology, IDEAL).timeline

    assert timeline.finish[[1, 3]].tolist() == [6.0, 2.0]


# Equal inputs, equal bits.

_SCRIPT = """
from tests.simulating import bits, simulate, xring_on_a_dgx1
print(bits(simulate(*xring_on_a_dgx1()).timeline))
"""


@pytest.mark.slow
def test_bits_do_not_depend_on_the_hash_seed():
    """Nothing is taken from a set on the way to a schedule: not here, nor with two other seeds."""
    root = Path(__file__).parents[2]
    seen = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", _SCRIPT]
        seen.add(
            subprocess.run(
                command, env=environment, cwd=root, capture_output=True, check=True
            ).stdout
        )

    assert {f"{bits(simulate(*xring_on_a_dgx1()).timeline)}\n".encode()} == seen


def test_a_plan_gives_the_same_bits_again_on_a_used_fabric():
    """Lanes and flows of earlier plans leave nothing behind: at a clock that reads 0 as at the
    first.
    """
    topology = pair(latency=1.0)
    plan = copy_plan(topology, (0, 1), (0, 1), (1, 0))
    day = Day(topology, begin=0.0)
    day.submit("first", plan).submit("second", plan, at=64.0)
    day.run()
    first, second = day.done["first"][1], day.done["second"][1]

    assert (first.start + 64.0).tolist() == second.start.tolist()
    assert (first.finish + 64.0).tolist() == second.finish.tolist()
    assert first.blame.tolist() == second.blame.tolist()


@pytest.mark.parametrize("ready", [-1.0, float("nan"), float("inf"), [0.0, 1.0, 2.0], [[0.0]]])
def test_times_of_readiness_that_make_no_sense_are_refused(ready):
    """Before anything runs: a negative one must not hang."""
    b = PlanBuilder(("gpu0", "gpu1"))
    b.output(b.copy(b.input(0, 0, 8), 1))
    plan = b.finish(Contract.of("broadcast", []))

    with pytest.raises(InputError, match="ready: "):
        simulate(plan, load_topology("full:2"), ready=np.asarray(ready))


def test_a_clock_that_starts_below_zero_runs():
    """SimPy lets an environment start anywhere."""
    b = PlanBuilder(("gpu0", "gpu1"))
    b.output(b.copy(b.input(0, 0, 25_000_000), 1))
    env = simpy.Environment(-5.0)
    done = Fabric(env, load_topology("full:2,bandwidth=1GB/s,latency=0us")).submit(
        b.finish(Contract.of("broadcast", []))
    )

    assert pytest.approx(-4.9) == env.run(until=done).finish.max()


def test_kernels_queue_with_what_sums_on_their_device():
    """A kernel holds the lane that an ADD on its device takes; under a runtime without lanes it
    holds up nobody.
    """
    for runtime, expected in ((TENSORFLOW, (2.0, 5.0)), (IDEAL, (2.0, 3.0))):
        env = simpy.Environment()
        fabric = Fabric(env, pair(), runtime=runtime)
        first, second = fabric.compute("gpu0", 2.0), fabric.compute("gpu0", 3.0)
        other = fabric.compute("gpu1", 1.0)
        env.run()

        assert expected == tuple(float(done.value.finish[0]) for done in (first, second))
        assert 1.0 == other.value.finish[0]
        assert bool(fabric.compute_lanes("gpu0")) == (runtime is TENSORFLOW)


class OneByOne(Fabric):
    """Puts every compute into the tables by itself, as any other plan."""

    def compute(self, device: str, seconds: float) -> simpy.Event:
        done = super().compute(device, seconds)
        self._append_computes()
        return done


@pytest.mark.parametrize("seed", range(6))
def test_computes_of_one_instant_are_as_if_each_was_submitted_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    plan, topology = xring_on_a_dgx1()
    gpus = sr.layout(topology).ranks
    instants = [(k * 2e-5, int(random.integers(4)), random.permutation(8)) for k in range(60)]

    def timelines(kind: type[Fabric]) -> list[str]:
        env = simpy.Environment()
        fabric = kind(env, topology)
        seen: list[str] = []

        def note(number: int, event: simpy.Event) -> object:
            timeline = yield event
            seen.append(f"{number} {env.now!r} {bits(timeline)}")

        def work() -> object:
            for number, (at, before, devices) in enumerate(instants):
                if at > env.now:
                    yield env.timeout(at - env.now)
                for i, device in enumerate(devices[: number % 9]):
                    if i == before:
                        env.process(note(number, fabric.submit(plan)))
                    seconds = 1e-5 * float(random_of[number, i])
                    env.process(note(number, fabric.compute(gpus[device], seconds)))

        random_of = np.random.default_rng(seed).integers(1, 4, (len(instants), 9))
        env.process(work())
        env.run()
        return seen

    together = timelines(Fabric)
    assert together == timelines(OneByOne)
    assert len(together) > 200
