"""Hosts by the switches above them, from whatever file says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.errors import TopologyError
from simreduce.files.formats import Faults
from simreduce.files.names import Name
from simreduce.topology.importers.aws_topology import is_aws, read_aws
from simreduce.topology.importers.gcp_topology import is_gcp, read_gcp
from simreduce.topology.importers.ib_net_discover import is_ib_net_discover, read_ib_net_discover
from simreduce.topology.importers.slurm_topology import is_slurm, read_slurm

Switches = tuple[str, ...]
"""The switches above a host, the topmost first; equal ones are shared."""

_READERS: tuple[
    tuple[Callable[[str], bool], Callable[[str, Faults], Mapping[Name, Switches]]], ...
] = (
    (is_aws, read_aws),
    (is_gcp, read_gcp),
    (is_ib_net_discover, read_ib_net_discover),
    (is_slurm, read_slurm),
)
READ = (
    "the output of `ibnetdiscover`, Slurm's topology.conf or `scontrol show topology`, JSON of "
    "`aws ec2 describe-instance-topology` or of `gcloud compute instances list`"
)


def read_hosts(text: str, name: str) -> Mapping[Name, Switches]:
    """The switches above each host in a file, whose content says what it is.

    Raises `TopologyError` with every fault.
    """
    faults = Faults(name)
    text = text.lstrip("\ufeff")
    read = next((read for fits, read in _READERS if fits(text)), None)
    if read is None:
        raise TopologyError(f"{name}: none of {READ}")
    found = read(text, faults)
    if not found and not faults.problems:
        faults.add("", "names no host")
    faults.raise_any(TopologyError)
    return found
