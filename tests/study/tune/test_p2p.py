"""Predicted matrices of p2pBandwidthLatencyTest."""

from __future__ import annotations

import pytest

from simreduce.engine import Calibration, LinkConstants
from simreduce.study.tune.sizes import peer_to_peer
from simreduce.topology import load_topology, shipped


def test_links_run_both_ways_at_full_rate_and_staged_copies_do_not():
    found = peer_to_peer(load_topology("dgx1v"))

    assert found.enabled.one_way[0][3] == pytest.approx(48e9, rel=1e-3)
    assert found.enabled.both_ways[0][3] == pytest.approx(96e9, rel=1e-3)
    assert found.enabled.latency[0][3] == pytest.approx(1.8e-6, rel=1e-3)
    assert found.disabled.one_way[0][3] == pytest.approx(10e9, rel=1e-3)
    assert found.disabled.both_ways[0][3] == pytest.approx(16.5e9, rel=1e-3)
    # Below one switch the up-link carries both directions of both copies.
    assert found.disabled.both_ways[0][1] == pytest.approx(10e9, rel=1e-3)
    assert found.disabled.latency[0][1] == pytest.approx(14.48e-6, rel=1e-3)
    assert found.enabled.one_way[0][0] is None


def test_peers_are_those_of_a_real_dgx1():
    """`cudaDeviceCanAccessPeer` on a DGX-1 with P100 (uuudown/Tartan): the linked pairs."""
    table = "01111000 10110100 11010010 11100001 10000111 01001011 00101101 00011110"

    assert [
        "".join("01"[cell] for cell in row) for row in peer_to_peer(load_topology("dgx1p")).peers
    ] == table.split()


def test_a_shared_switch_halves_what_pcie_peers_have_with_the_host_only():
    found = peer_to_peer(load_topology("pcie-single-root-8"))

    assert found.enabled.both_ways[0][1] == pytest.approx(24e9, rel=1e-3)
    assert found.enabled.both_ways[0][4] == pytest.approx(24e9, rel=1e-3)
    assert found.disabled.both_ways[0][4] == pytest.approx(10e9, rel=1e-3)


def test_geforce_has_no_peers():
    found = peer_to_peer(load_topology("rtx4090-2"))

    assert found.peers == ((False, False), (False, False))
    assert found.enabled == found.disabled


def test_trays_of_an_nvl72_stage_nothing_between_each_other():
    found = peer_to_peer(load_topology("gb200-nvl72"))

    assert found.enabled.one_way[0][71] == pytest.approx(18 * 42.7e9, rel=1e-2)
    assert found.disabled.one_way[0][71] is None
    assert found.disabled.one_way[0][1] is not None


def test_a_calibration_is_used():
    links = {"nvlink2": LinkConstants(bandwidth=20e9)}
    found = peer_to_peer(
        load_topology("v100-mesh-4"), Calibration("slow", dispatch={}, links=links)
    )

    assert found.enabled.one_way[0][1] == pytest.approx(40e9, rel=1e-3)


@pytest.mark.parametrize("name", [name for name, _ in shipped() if "gb200" not in name])
def test_matrices_of_every_machine_make_sense(name):
    found = peer_to_peer(load_topology(name))

    for matrices in (found.disabled, found.enabled):
        for i, row in enumerate(matrices.one_way):
            for j, rate in enumerate(row):
                if i != j:
                    both = matrices.both_ways[i][j]
                    assert 1e9 < rate <= 1e12
                    assert rate * 0.999 <= both <= 2.001 * rate
                    assert 0 < matrices.latency[i][j] < 40e-6
                    assert found.enabled.one_way[i][j] >= found.disabled.one_way[i][j] * 0.999
