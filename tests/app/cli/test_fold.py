"""`bench` of more machines than can be held."""

from __future__ import annotations

import json

import pytest


def test_bench_says_that_it_folds(simreduce):
    status, out, err = simreduce(
        "bench", "switch:5000", "--algo", "ring", "-b", "20960000", "--runtime", "ideal"
    )

    assert (status, err) == (0, "")
    assert "# folded: one of 5000 equal machines is simulated; #wrong is proved on 4 of them" in out
    # 2 (n - 1) steps of 1 us and 4,192 bytes at 25 GB/s
    assert float(out.splitlines()[5].split()[5]) == pytest.approx(
        9998 * (1 + 4192 / 25e3), rel=1e-3
    )


def test_bench_folds_when_asked(simreduce):
    status, out, _ = simreduce(
        "bench", "dgx1vx4", "--algo", "ring/ring,direct", "-b", "1M", "--fold", "--json"
    )

    assert status == 0
    assert [r["folded_machines"] for r in json.loads(out)["rows"]] == [1, 4]
    _, out, _ = simreduce("bench", "dgx1vx4", "--algo", "direct", "-b", "1M", "--fold")
    assert "machines hang on ties in queues is not tried (--no-fold tries it)" in out
    status, _, err = simreduce("bench", "dgx1v", "--algo", "ring", "--fold")
    assert status == 2
    assert "one cannot stand for all" in err


def test_more_than_can_be_folded_are_refused(simreduce):
    status, _, err = simreduce("bench", "switch:2000000", "--algo", "ring")

    assert status == 2
    assert "2000000 machines are more than can be simulated" in err
