"""Small files made by hand in the shapes that NVIDIA's tools write."""

from __future__ import annotations

import json

TOPO_M = """\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV2\tSYS\tSYS\tPIX\tSYS\t0-23\t0\t\tN/A
GPU1\tNV2\t X \tSYS\tSYS\tPIX\tSYS\t0-23\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV2\tSYS\tPXB\t24-47\t1\t\tN/A
GPU3\tSYS\tSYS\tNV2\t X \tSYS\tPXB\t24-47\t1\t\tN/A
NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\t
NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
"""Two pairs with bridges on two sockets, as a recent driver prints them."""

CUBE_MESH = """
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7
GPU0     X      NV1     NV1     NV2     NV2     SYS     SYS     SYS
GPU1    NV1      X      NV2     NV1     SYS     NV2     SYS     SYS
GPU2    NV1     NV2      X      NV2     SYS     SYS     NV1     SYS
GPU3    NV2     NV1     NV2      X      SYS     SYS     SYS     NV1
GPU4    NV2     SYS     SYS     SYS      X      NV1     NV1     NV2
GPU5    SYS     NV2     SYS     SYS     NV1      X      NV2     NV1
GPU6    SYS     SYS     NV1     SYS     NV1     NV2      X      NV2
GPU7    SYS     SYS     SYS     NV1     NV2     NV1     NV2      X
"""
"""A hybrid cube mesh that says nothing of switches and NICs."""

SWITCHED = """
        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity
GPU0     X      NV12    NV12    NV12    PXB     0-63
GPU1    NV12     X      NV12    NV12    PXB     0-63
GPU2    NV12    NV12     X      NV12    SYS     64-127
GPU3    NV12    NV12    NV12     X      SYS     64-127
mlx5_0  PXB     PXB     SYS     SYS      X
"""
"""Four A100 on NVSwitches."""

XML = """<!-- made by hand -->
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:07:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:c4:00.0" count="2" tclass="0x068000"/>
          <nvlink target="0000:c5:00.0" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:08:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:81:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:87:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1">
          <nvlink target="0000:c4:00.0" count="2" tclass="0x068000"/>
          <nvlink target="0000:c5:00.0" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
    </pci>
  </cpu>
</system>
"""
"""Two GPUs on NVSwitches below a switch each, one NIC; the second GPU has eight lanes."""

PAIR_XML = """<system version="1"><cpu numaid="0">
  <pci busid="0000:09:00.0" class="0x030200"><gpu dev="0" sm="70"><nvlink target="0000:0a:00.0" count="2"/></gpu></pci>
  <pci busid="0000:0A:00.0" class="0x030200"><gpu dev="1" sm="70"><nvlink target="0000:09:00.0" count="2"/></gpu></pci>
</cpu></system>
"""
"""Two V100 with a double link; speeds are left out, and bus ids are in either case."""

BARE_XML = """<system version="1">
  <cpu numaid="0"><pci busid="0000:00:16.0"/><pci busid="0000:00:17.0"/></cpu>
  <cpu numaid="1"><pci busid="0000:00:18.0"/><pci busid="0000:00:15.0"/></cpu>
</system>
"""
"""Devices that do not say what they are."""

GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="12" latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><net dev="1"/></channel>
    <channel><gpu dev="2"/><gpu dev="1"/><gpu dev="0"/></channel>
  </graph>
  <graph id="1" pattern="3" nchannels="2" speedintra="20" speedinter="12" typeintra="NVL" typeinter="PIX">
    <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/></channel>
  </graph>
</graphs>
"""
"""Two rings, one of them to NICs, and a tree of which only the first of two equal channels stands
there.
"""

P2P_TEST = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, Tesla V100, pciBusID: 4, pciDeviceID: 0, pciDomainID:0

P2P Connectivity Matrix
     D\\D     0     1
     0       1     1
     1       1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 741.07  10.50
     1  10.60 742.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 741.07  48.50
     1  48.40 742.00
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 741.07  96.90
     1  96.80 742.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   1.60   1.90
     1   1.91   1.61

   CPU     0      1
     0   3.10   7.20
     1   7.30   3.00
"""

NCCL_TESTS = """# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1     9.10    0.00    0.00      0     9.00    0.00    0.00      0
   134217728      33554432     float     sum      -1     1234  108.77  108.77      0   1230.0  109.12  109.12      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 54.4
"""

OLD_NCCL_TESTS = """#                                             out-of-place                    in-place
#       size         count    type   redop     time   algbw   busbw     error     time   algbw   busbw     error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)                (us)  (GB/s)  (GB/s)
     1048576        262144   float     sum   10185   12.34   21.60     1e-06     81.0   12.94   22.65     1e-06
"""

ROCM_SMI = """============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            15           15           15
GPU1   15           0            15           15
GPU2   15           15           0            15
GPU3   15           15           15           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            1            1            1
GPU1   1            0            1            1
GPU2   1            1            0            1
GPU3   1            1            1            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         XGMI         XGMI
GPU1   XGMI         0            XGMI         XGMI
GPU2   XGMI         XGMI         0            XGMI
GPU3   XGMI         XGMI         XGMI         0

======================================= Numa Nodes =======================================
GPU[0]  : (Topology) Numa Node: 0
GPU[0]  : (Topology) Numa Affinity: 0
GPU[1]  : (Topology) Numa Node: 0
GPU[1]  : (Topology) Numa Affinity: 0
GPU[2]  : (Topology) Numa Node: 1
GPU[2]  : (Topology) Numa Affinity: 1
GPU[3]  : (Topology) Numa Node: 1
GPU[3]  : (Topology) Numa Affinity: 1
================================== End of ROCm SMI Log ===================================
"""
"""What `rocm-smi --showtopo` prints on four GPUs of a mesh."""

AMD_SMI = """ACCESS TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 ENABLED      ENABLED      ENABLED
0000:22:00.0 ENABLED      ENABLED      ENABLED
0000:38:00.0 ENABLED      ENABLED      ENABLED

WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 0            15           30
0000:22:00.0 15           0            15
0000:38:00.0 30           15           0

HOPS TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 0            1            2
0000:22:00.0 1            0            1
0000:38:00.0 2            1            0

LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 SELF         XGMI         XGMI
0000:22:00.0 XGMI         SELF         XGMI
0000:38:00.0 XGMI         XGMI         SELF

NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 N/A          50000-200000 N/A
0000:22:00.0 50000-200000 N/A          50000-50000
0000:38:00.0 N/A          50000-50000  N/A

CACHE COHERANCY TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 SELF         C            C

Legend:
 SELF = Current GPU
"""
"""What `amd-smi topology` prints on three dies in a row."""

AMD_SMI_JSON = json.dumps(
    [
        {
            "gpu": i,
            "bdf": f"0000:{i}c:00.0",
            "links": [
                {
                    "gpu": j,
                    "weight": 15 * abs(i - j),
                    "link_type": "XGMI" if i != j else "SELF",
                    "num_hops": abs(i - j),
                    "bandwidth": {1: "50000-200000", 3: "50000-50000"}.get(
                        i + j if abs(i - j) == 1 else 0, "N/A"
                    ),
                }
                for j in range(3)
            ],
        }
        for i in range(3)
    ]
)
"""The same as JSON."""

RCCL_XML = """<system version="2">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="191" modelid="2">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:03:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="bnxt_re0" dev="0" speed="400000" gdr="1"/></nic>
      </pci>
      <pci busid="0000:06:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="95" gcn="gfx950" arch="38911" rank="0" gdr="1">
          <xgmi target="0000:16:00.0" count="1" tclass="0x120000"/>
        </gpu>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD" familyid="191" modelid="2">
    <pci busid="0000:16:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="95" gcn="gfx950" arch="38911" rank="1" gdr="1">
        <xgmi target="0000:06:00.0" count="1" tclass="0x120000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""
"""RCCL's topology of two GPUs."""
