"""Which shipped machine stands for each machine that published measurements name."""

from __future__ import annotations

from collections.abc import Mapping

MACHINES: Mapping[str, str] = {
    "2xRTX2080Ti-pcie3-nop2p": "rtx2080ti-2",
    "2xRTX4090-pcie": "rtx4090-2",
    "4xA100-SXM4-nv4mesh": "a100-mesh-4",
    "4xP100-PCIe-16g": "pcie-single-root-4",
    "4xV100-PCIe-32g": "v100-pcie-4",
    "8xA100-PCIe-40g": "a100-pcie-8",
    "8xA100-SXM4-80g-nvswitch": "hgx-a100-80g",
    "8xH800-nvswitch": "hgx-h800",
    "8xRTX4090-pcie-a": "pcie-no-p2p-8",
    "8xV100-SXM2-32g-nvlink-hcm": "v100-cube-mesh-8",
    "abci-a-8xA100-40g-nvswitch": "abci-a",
    "abci-v-4xV100-16g-nv2mesh": "abci-v",
    "alps-4xGH200-slingshot11": "alps",
    "azure-ndv4-8xA100-40g": "ndv4",
    "deepbench-8xP100-PCIe-dualroot": "pcie-dual-root-8",
    "dgx-a100-8xHDR": "dgx-a100",
    "dgx-h100": "dgx-h100",
    "dgx1-p100": "dgx1p",
    "dgx2-16xV100-nvswitch": "dgx2",
    "hgx-h100-8xNDR400-xx": "dgx-h100",
    "p3dn-1gpu-per-node-tcp100": "p3dn",
    "p3dn-8xV100-32g-100GbEFA": "p3dn",
    "p5-8xH100-32xEFA100": "p5",
    "polaris-4xA100-40g-slingshot11": "polaris",
    "snellius-4xH100-nv6mesh-4xNDR200": "snellius",
}
"""By the name in tables of measurements."""

NETWORKS: Mapping[str, str] = {
    "abci-a-8xA100-40g-nvswitch": "ib_hdr",
    "abci-v-4xV100-16g-nv2mesh": "ib_edr",
    "alps-4xGH200-slingshot11": "slingshot11",
    "dgx-a100-8xHDR": "ib_hdr",
    "hgx-h100-8xNDR400-xx": "ib_ndr",
    "p3dn-1gpu-per-node-tcp100": "tcp_100",
    "p3dn-8xV100-32g-100GbEFA": "efa_100",
    "p5-8xH100-32xEFA100": "efa_100x4",
    "polaris-4xA100-40g-slingshot11": "slingshot11",
    "snellius-4xH100-nv6mesh-4xNDR200": "ib_hdr",
}
"""The class of the cables between several of them: what `nic=` takes."""
