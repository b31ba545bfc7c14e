"""Configurations in plain words."""

from __future__ import annotations

import pytest

from simreduce.study.capacity.choose import Configuration
from simreduce.study.capacity.options import plain, product
from simreduce.topology import shipped


@pytest.mark.parametrize(
    ("machine", "called"),
    [
        ("dgx-h100", "DGX H100"),
        ("p4d", "AWS p4d.24xlarge"),
        ("a3mega", "Google Cloud a3-megagpu-8g"),
        ("ndv5", "Azure Standard_ND96isr_H100_v5"),
        ("dgx1v", "DGX-1 (dgx1v)"),
        ("v100-pcie-4", "v100-pcie-4"),
        ("gh200", "gh200"),
        ("box.toml", "box"),
    ],
)
def test_machines_are_called_as_who_sells_them_does(machine, called):
    """If one machine only is called so, and not `2 4 V100-PCIe`; otherwise by their names."""
    assert called == product(machine)


def test_no_two_machines_are_called_the_same():
    names = [name for name, _ in shipped()]

    assert len(names) == len({product(name) for name in names})


TCP = "100 Gbit/s TCP ports"


@pytest.mark.parametrize(
    ("key", "varied", "words"),
    [
        (("", "dgx-h100", "4", "fat_tree,oversubscription=2", "fsdp", "nccl", "2"), (),
         "4 DGX H100, 2:1 fat tree, batch 2 a GPU"),
        (("", "dgx-h100", "4", "rail_optimised", "fsdp", "nccl", "2"), ("method", "strategy"),
         "4 DGX H100, rail-optimised, FSDP, nccl, batch 2 a GPU"),
        (("", "p5", "2", "switch", "ddp", "nccl", "8"), ("method",),
         "2 AWS p5.48xlarge, DDP, batch 8 a GPU"),
        (("", "p5", "2", "switch", "ddp", "nccl", "8"), ("network",),
         "2 AWS p5.48xlarge, switch, batch 8 a GPU"),
        (("servers", "v100-pcie-4", "2", "switch,nic=tcp_100", "", "parameter_server", "64"),
         ("name", "strategy"),
         f"2 v100-pcie-4, servers, switch of {TCP}, parameter server, batch 64 a GPU"),
        (("", "dgx1v", "8", "fat_tree,levels=3", "ddp", "nccl", ""), (),
         "8 DGX-1 (dgx1v), fat tree (levels 3)"),
    ],
)  # fmt: skip
def test_a_configuration_leaves_out_what_all_share(key, varied, words):
    """But for the machine, its number, a network that is no plain switch, and the batch."""
    assert words == plain(Configuration(*key), varied)


def test_ports_are_called_by_their_rate_and_kind():
    def found(nic):
        key = Configuration("", "p5", "2", f"switch,nic={nic}", "ddp", "nccl", "")
        return plain(key, ()).removeprefix("2 AWS p5.48xlarge, switch of ").removesuffix(" ports")

    assert ["4 x 100 Gbit/s EFA", "InfiniBand NDR", "my_link"] == [
        found(nic) for nic in ("efa_100x4", "ib_ndr", "my_link")
    ]
