"""What the textbooks derive, read off the command line: `bench switch:N ... --runtime ideal
--json`.

A switch joins n devices by ports that carry B bytes/s each way, and a message takes `a` seconds to
arrive. There are no queues, no overheads, and adding is free.
"""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from simreduce.app.cli import main
from simreduce.planners.algorithms.tensorflow import gather_groups
from tests.thorough import examples


@pytest.fixture
def times(monkeypatch, capsys):
    """Seconds of one all-reduce by size in bytes, as the command says."""

    def bench(
        n: int, megabytes: int, nanoseconds: int, algorithm: str, *sizes: int
    ) -> dict[int, float]:
        step = sizes[1] - sizes[0] if len(sizes) > 1 else 1
        machine = f"switch:{n},bandwidth={megabytes}MB/s,latency={nanoseconds}ns"
        monkeypatch.setattr(sys, "argv", [
            "simreduce", "bench", machine, "--algo", algorithm, "--runtime", "ideal", "--json",
            "-b", str(sizes[0]), "-e", str(sizes[-1]), "-i", str(step),
        ])  # fmt: skip
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()

        assert (0, "") == (end.value.code, err)
        rows = json.loads(out)["rows"]
        assert {0} == {row["wrong"] for row in rows}
        return {row["size_bytes"]: row["time_us"] * 1e-6 for row in rows}

    return bench


rates = st.integers(1, 400_000)  # MB/s
delays = st.integers(0, 10_000_000)  # ns
quick = settings(
    max_examples=examples(80, usual=8), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("n", range(2, 65))
def test_a_ring_takes_two_n_minus_one_steps_of_a_chunk(times, n):
    """In 2(n-1) steps every rank sends one chunk of S/n to its neighbour, on a port of its own:
    2(n-1)(a + S/(nB)).
    """
    megabytes, nanoseconds = 1000 + 37 * n, 100 * n
    b, a = megabytes * 1e6, nanoseconds * 1e-9
    sizes = [4 * n * 1000] if n > 8 else [4 * n, 4 * n * 1001]

    assert {
        size: pytest.approx(2 * (n - 1) * (a + size / (n * b)), rel=1e-9) for size in sizes
    } == times(n, megabytes, nanoseconds, "ring", *sizes)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 12])
@quick
@given(rate=rates, delay=delays, chunk=st.integers(1, 10**6))
def test_a_ring_on_any_switch(times, n, rate, delay, chunk):
    """The same for any rate, delay and size that n divides."""
    size, b, a = 4 * n * chunk, rate * 1e6, delay * 1e-9

    assert {size: pytest.approx(2 * (n - 1) * (a + size / (n * b)), rel=1e-9)} == times(
        n, rate, delay, "ring", size
    )


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
@quick
@given(rate=rates, delay=delays, elements=st.integers(1, 10**7))
def test_a_star_is_limited_by_the_port_in_its_middle(times, n, rate, delay, elements):
    """All n-1 others send S to the first device at once, which share its port in: (n-1)S/B; then
    they share its port out, and each way costs `a` once: 2(a + (n-1)S/B).
    """
    size, b, a = 4 * elements, rate * 1e6, delay * 1e-9

    assert {size: pytest.approx(2 * (a + (n - 1) * size / b), rel=1e-9)} == times(
        n, rate, delay, "reduce_to_one", size
    )


GROUPS = [(n, g, gather_groups(range(n), g)[0]) for n in (2, 3, 4, 5, 8) for g in range(1, n + 1)]
"""Devices, shards, and the devices that gather the shards of the first tensor."""


@pytest.mark.parametrize(
    ("n", "g", "gather"), [case for case in GROUPS if len(set(case[2])) == case[1]]
)
@quick
@given(rate=rates, delay=delays, shard=st.integers(1, 10**6))
def test_a_shuffle_is_a_star_on_each_of_its_gather_devices(times, n, g, gather, rate, delay, shard):
    """Each of g gather devices receives its shard, S/g, from the n-1 others and sends the sum back
    to them.

    Its port carries (n-1)S/g each way. A source has at most n-1 shards to send (g of them when g <
    n; when all devices gather, it keeps its own), so the n-1 flows into a gather device are the
    tightest share there is: max-min gives every flow B/(n-1), all begin after `a` and end together,
    and no port is asked for more than B. Then the sums go back the same way: 2(a + (n-1)S/(gB))
    when g divides the elements.
    """
    size, b, a = 4 * g * shard, rate * 1e6, delay * 1e-9

    assert g == len(gather)
    assert {size: pytest.approx(2 * (a + (n - 1) * size / (g * b)), rel=1e-9)} == times(
        n, rate, delay, f"psgpu#{g}", size
    )


@pytest.mark.parametrize(
    ("n", "g", "gather"), [case for case in GROUPS if len(set(case[2])) < case[1]]
)
@quick
@given(rate=rates, delay=delays, shard=st.integers(1, 10**6))
def test_a_device_that_gathers_twice_takes_twice_as_long(times, n, g, gather, rate, delay, shard):
    """tf_cnn_benchmarks deals the devices out to ceil(n/g) groups in turn, round and round, so that
    some device may come twice in one group. It has k shards to receive from the others and k sums
    to send: no less than 2(a + k(n-1)S/(gB)).
    """
    size, b, a = 4 * g * shard, rate * 1e6, delay * 1e-9
    k = max(gather.count(device) for device in gather)
    (seconds,) = times(n, rate, delay, f"psgpu#{g}", size).values()

    assert 2 == k
    assert 2 * (a + k * (n - 1) * size / (g * b)) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("algorithm", ["ring", "reduce_to_one", "psgpu"])
def test_one_device_has_its_sum_already(times, algorithm):
    """Each formula is 0 for n = 1."""
    assert {4096: 0.0} == times(1, 1000, 1000, algorithm, 4096)
