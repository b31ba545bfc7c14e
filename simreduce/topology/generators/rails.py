"""`dgx-h100x128,fabric=rail_optimised` and `fabric=rail_only`: the i-th NICs of all machines are a
rail.

Rail-optimised (NVIDIA DGX SuperPOD reference architecture): `unit` machines, 32 unless stated, and
r leaves, one for each NIC of a machine, are a scalable unit. Leaf i of a unit has the i-th NIC of
each of its machines, and unit / oversubscription up-links, one to each spine. Over N machines: r
ceil(N / unit) leaves; bisection, between halves of whole units, r N / 2 / oversubscription cables.
Where only NVLink joins the boards of a machine, as the trays of a GB200 NVL72, each board counts as
a machine: it has 4 rails, not 72. With `levels=3` the units whose leaves are at most `unit` share
spines, a pod, and every spine has as many cables to cores as leaves under it.

Rail-only (Wang et al. 2023): a switch for each rail, and nothing between them.

Between rails, a rail-optimised network carries traffic over its spines. On a rail-only one, a
transfer changes the rail inside a machine, from one GPU or host to the NIC of another over PCIe and
host bridges, as GPUDirect RDMA can. NVLink is no way to change the rail: it ends at GPUs, and these
do not forward. (NCCL's PXN does store and forward, in another GPU's memory: those are two
transfers, and algorithms such as `blueconnect` or `ring/ring` make them.) Where a machine's PCIe
does not join its NICs, such a transfer is refused.
"""

from __future__ import annotations

from simreduce.topology.generators.fat_tree import FatTree, up_links
from simreduce.topology.generators.inline import DEVICES_LIMIT, InlineSettings

UNIT = 32
RAIL_KEYS = ("unit", "oversubscription", "levels", "reduce")


def read_rails(settings: InlineSettings, machines: int, nics: int) -> FatTree:
    """The rails of `machines` machines with `nics` NICs each, joined by spines."""
    unit = settings.whole("unit", min(UNIT, machines), 1, DEVICES_LIMIT)
    up, reduces = up_links(settings, unit), settings.flag("reduce")
    pod = max(unit // nics, 1) * nics if settings.whole("levels", 2, 2, 3) == 3 else 0
    leaves = -(-machines // unit) * nics
    if leaves == 1:
        up = 0
    if leaves <= pod:
        pod = 0
    return FatTree(machines * nics, unit, up, reduces, rails=nics, pod=pod, cores=pod)


def read_rails_only(settings: InlineSettings, machines: int, nics: int) -> FatTree:
    """A switch for each rail."""
    return FatTree(machines * nics, machines, 0, settings.flag("reduce"), rails=nics)
