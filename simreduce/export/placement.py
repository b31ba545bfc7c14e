"""The order of nodes for what starts ranks: MPI, Slurm, Kubernetes and torchrun.

Open MPI: hostfile and rankfile (mpirun(1) 4.1, https://www.open-mpi.org/doc/current/man1/mpirun.1.php).
Slurm: SLURM_HOSTFILE, `--distribution=arbitrary` and `--switches` (srun(1),
https://slurm.schedmd.com/srun.html). Kubernetes: `kubernetes.io/hostname`
(https://kubernetes.io/docs/reference/labels-annotations-taints/), Kueue's annotations
(https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/), Google's label of a sub-block
(https://cloud.google.com/ai-hypercomputer/docs/workloads/schedule-gke-workloads-tas) and AWS's of a
layer of the network
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology.html). torchrun:
`--node-rank` (https://docs.pytorch.org/docs/stable/elastic/run.html).
"""

from __future__ import annotations

from collections.abc import Mapping

from simreduce.export.choice import Choice

HOSTFILE, RANKFILE, SLURM_HOSTFILE, HOSTS = "hostfile", "rankfile", "slurm-hostfile", "hosts"
KUEUE = "kueue.x-k8s.io/podset"
LAYERS = {
    "Google Cloud": "cloud.google.com/gce-topology-subblock",
    "AWS": "topology.k8s.aws/network-node-layer-3",
}
"""Labels of what is nearest on a network, by cloud."""
_PORT = 29500


def mpi(choice: Choice) -> Mapping[str, str]:
    """Open MPI's files and command line."""
    sizes, ranks = _sizes(choice), choice.setup.layout.n
    slots = "".join(f"{host} slots={size}\n" for host, size in sizes)
    places = [(host, slot) for host, size in sizes for slot in range(size)]
    rows = "".join(f"rank {i}={host} slot={slot}\n" for i, (host, slot) in enumerate(places))
    command = f'mpirun -np {ranks} --hostfile {HOSTFILE} --map-by slot "$@"\n'
    about = f"# Or with each rank on one core, that of its number: mpirun --rankfile {RANKFILE}\n"
    return {
        HOSTFILE: f"# {_about(choice)}\n{slots}",
        RANKFILE: f"# {_about(choice)}\n{rows}",
        "mpirun.sh": f"# {_about(choice)}\n{about}{command}",
    }


def slurm(choice: Choice) -> Mapping[str, str]:
    """A host for each task, in the order of tasks, and the options that read it."""
    lines = "".join(f"{host}\n" * size for host, size in _sizes(choice))
    nodes, groups = len(choice.hosts), len({*choice.groups})
    script = [
        f"# {_about(choice)}",
        f"# To ask for nodes below as few switches: #SBATCH --switches={groups}" if groups else "",
        f'export SLURM_HOSTFILE="$PWD/{SLURM_HOSTFILE}"',
        f'srun --distribution=arbitrary --nodes={nodes} --ntasks={choice.setup.layout.n} "$@"',
    ]
    return {SLURM_HOSTFILE: lines, "slurm.sh": "\n".join(filter(None, script)) + "\n"}


def kubernetes(choice: Choice) -> Mapping[str, str]:
    """A part of a pod's template: the nodes, and the layer of the network to ask Kueue for."""
    together = "required" if len({*choice.groups}) == 1 else "preferred"
    layers = [f"#   {label}  # {cloud}" for cloud, label in LAYERS.items()]
    hosts = "".join(f"                - {host}\n" for host in choice.hosts)
    text = f"""\
# {_about(choice)}
# Kueue: have all pods on one layer of the network; its label depends on the cluster:
{chr(10).join(layers)}
# {KUEUE}-{together}-topology: LABEL
# The i-th host is that of the i-th node rank; nodes are given to pods by name where ranks matter.
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
            - key: kubernetes.io/hostname
              operator: In
              values:
{hosts}"""
    return {"pod.yaml": text, HOSTS: "".join(f"{host}\n" for host in choice.hosts)}


def torchrun(choice: Choice) -> Mapping[str, str]:
    """The hosts in the order of node ranks, and a command that each host runs."""
    counts = {size for _, size in _sizes(choice)}
    each = counts.pop() if len(counts) == 1 else "gpu"
    command = f"""\
# {_about(choice)}
# Run on every host. With a rendezvous of another kind than static, torchrun gives ranks itself.
line=$(grep -nxF -e "$(hostname -s)" -e "$(hostname -f)" {HOSTS} | head -n 1 | cut -d: -f1)
[ -n "$line" ] || {{ echo "$(hostname) is not in {HOSTS}" >&2; exit 1; }}
torchrun --nnodes={len(choice.hosts)} --nproc-per-node={each} --node-rank=$((line - 1)) \\
  --master-addr={choice.hosts[0]} --master-port={_PORT} "$@"
"""
    return {HOSTS: "".join(f"{host}\n" for host in choice.hosts), "torchrun.sh": command}


def _sizes(choice: Choice) -> list[tuple[str, int]]:
    """Each host with its ranks, in their order."""
    return [
        (host, len(task))
        for host, task in zip(choice.hosts, choice.setup.layout.tasks, strict=True)
    ]


def _about(choice: Choice) -> str:
    return f"{choice.title}: the order of nodes"
