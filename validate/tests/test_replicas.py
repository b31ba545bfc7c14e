"""TensorFlow's SyncReplicasOptimizer on real servers does what the processes do: the scenarios of
the measured values, and two variables on two servers.
"""

from __future__ import annotations

import pytest
from simreduce_validate.replicas import cluster, differences

from simreduce.training.replicas import SyncSettings

SLOWER = 2.0
"""Times that of the measured scenarios: their gaps of 0.1 s are then wider than what a busy machine
loses.
"""

SCENARIOS = [
    (SyncSettings(2, 2, -1), (0.2, 0.5), 1.4, 1),
    (SyncSettings(2, 2, 0), (0.2, 0.5), 1.4, 1),
    (SyncSettings(2, 3, 0), (0.2, 0.3, 0.75), 1.25, 1),
    (SyncSettings(3, 2, 1), (0.2, 0.5), 1.45, 2),
]


@pytest.fixture(scope="module")
def servers():
    with cluster(servers=2, workers=3) as running:
        yield running


@pytest.mark.parametrize(("settings", "compute", "until", "variables"), SCENARIOS)
def test_real_servers_make_the_same_updates_and_drop_the_same_gradients(
    servers, settings, compute, until, variables
):
    slow = [SLOWER * each for each in compute]
    found = servers.train(settings, slow, SLOWER * until + 1.0, variables)

    assert variables == len(found)
    for v, entered in enumerate(found):
        assert [] == differences(entered, settings, slow, SLOWER * until, v)
        assert len(entered.update) > 5


def test_a_difference_is_told(servers):
    """Two gradients an update are not one."""
    found = servers.train(SyncSettings(1, 2, 0), (0.4, 1.0), 2.5)

    assert [] == differences(found[0], SyncSettings(1, 2, 0), (0.4, 1.0), 1.5)
    assert any(
        "predicted" in text
        for text in differences(found[0], SyncSettings(2, 2, 0), (0.4, 1.0), 1.5)
    )
