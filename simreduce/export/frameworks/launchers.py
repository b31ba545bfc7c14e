"""The order of nodes for what starts ranks: MPI, Slurm, Kubernetes and torchrun.

Open MPI: hostfile (mpirun(1) 4.1, https://www.open-mpi.org/doc/current/man1/mpirun.1.php). 4.1.4,
asked, gives the first ranks to the node that runs mpirun, wherever the file has it, unless a
rankfile says otherwise, which ties each rank to a core; 5.0 keeps the file's order. MPICH: Hydra's
file (https://www.mpich.org/static/docs/latest/www1/mpiexec.html); 4.0.2 and 5.0.2, asked, keep its
order and refuse Open MPI's. Slurm: SLURM_HOSTFILE,
`--distribution=arbitrary` and `--switches` (srun(1), https://slurm.schedmd.com/srun.html).
Kubernetes: `kubernetes.io/hostname`
(https://kubernetes.io/docs/reference/labels-annotations-taints/), Kueue's annotations
(https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/), Google's label of a sub-block
(https://cloud.google.com/ai-hypercomputer/docs/workloads/schedule-gke-workloads-tas) and AWS's of a
layer of the network
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology.html). torchrun:
`--node-rank` (https://docs.pytorch.org/docs/stable/elastic/run.html).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.export.framework import Choice, Framework
from simreduce.export.writers import END, Raw, host_lines, script, sequence, yaml
from simreduce.files.formats import Name

HOSTFILE, MPICH_HOSTFILE = "hostfile", "mpich-hostfile"
SLURM_HOSTFILE, HOSTS = "slurm-hostfile", "hosts"
KUEUE = "kueue.x-k8s.io/podset"
LAYERS = {
    "Google Cloud": "cloud.google.com/gce-topology-subblock",
    "AWS": "topology.k8s.aws/network-node-layer-3",
}
"""Labels of what is nearest on a network, by cloud."""
_PORT = 29500
_ARGUMENTS = Raw('"$@"')
_FIND_LINE = Raw(
    'line=$(grep -nxF -e "$(hostname -s)" -e "$(hostname -f)" hosts | head -n 1 | cut -d: -f1)'
)
_STOP = Raw('[ -n "$line" ] || { echo "$(hostname) is not in hosts" >&2; exit 1; }')
_ON_FIRST = Raw(
    """case "$(mpirun --version) $(hostname -s) $(hostname -f) " in *") 4."*" $first "*) ;;"""
    """ *") 4."*) echo "run this on $first" >&2; exit 1;; esac"""
)
_NODE_RANK = Raw("--node-rank=$((line - 1))")
_BY_NAME = (
    "The i-th host is that of the i-th node rank; nodes are given to pods by name where ranks"
    " matter."
)
_AFFINITY = Raw("""\
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
            - key: kubernetes.io/hostname
              operator: In
              values:
""")


def _open_mpi(choice: Choice) -> Mapping[str, str]:
    """Open MPI's file and command line, which stops where the order would be another."""
    first, about = choice.hosts[0], _about(choice)
    return {
        HOSTFILE: host_lines(
            (("", host, f" slots={size}") for host, size in _sizes(choice)), [about]
        ),
        "mpirun.sh": script(
            [about, f"Run on {first}: Open MPI 4 has the first ranks where mpirun runs."],
            ["export", f"first={first}"],
            [_ON_FIRST],
            ["mpirun", "-np", str(choice.setup.layout.n), "--hostfile", HOSTFILE, "--map-by",
             "slot", _ARGUMENTS],
        ),
    }  # fmt: skip


def _mpich(choice: Choice) -> Mapping[str, str]:
    """MPICH's file and command line."""
    about, ranks = _about(choice), str(choice.setup.layout.n)
    rows = (("", host, f":{size}") for host, size in _sizes(choice))
    return {
        MPICH_HOSTFILE: host_lines(rows, [about]),
        "mpiexec.sh": script([about], ["mpiexec", "-f", MPICH_HOSTFILE, "-n", ranks, _ARGUMENTS]),
    }


def _slurm(choice: Choice) -> Mapping[str, str]:
    """A host for each task, in the order of tasks, and the options that read it."""
    nodes, groups = len(choice.hosts), len({*choice.groups})
    ask = f"To ask for nodes below as few switches: #SBATCH --switches={groups}"
    return {
        SLURM_HOSTFILE: host_lines(
            ("", host, "") for host, size in _sizes(choice) for _ in range(size)
        ),
        "slurm.sh": script(
            [_about(choice), *[ask] * bool(groups)],
            ["export", Raw('SLURM_HOSTFILE="$PWD/slurm-hostfile"')],
            ["srun", "--distribution=arbitrary", f"--nodes={nodes}",
             f"--ntasks={choice.setup.layout.n}", _ARGUMENTS],
        ),
    }  # fmt: skip


def _kubernetes(choice: Choice) -> Mapping[str, str]:
    """A part of a pod's template: the nodes, and the layer of the network to ask Kueue for."""
    together = "required" if len({*choice.groups}) == 1 else "preferred"
    comments = [
        _about(choice),
        "Kueue: have all pods on one layer of the network; its label depends on the cluster:",
        *(f"  {label}  # {cloud}" for cloud, label in LAYERS.items()),
        f"{KUEUE}-{together}-topology: LABEL",
        _BY_NAME,
    ]
    return {
        "pod.yaml": yaml(comments, _AFFINITY, sequence(choice.hosts, 16)),
        HOSTS: _hosts(choice),
    }


def _torchrun(choice: Choice) -> Mapping[str, str]:
    """The hosts in the order of node ranks, and a command that each host runs."""
    counts = {size for _, size in _sizes(choice)}
    each = counts.pop() if len(counts) == 1 else "gpu"
    static = "With a rendezvous of another kind than static, torchrun gives ranks itself."
    return {
        HOSTS: _hosts(choice),
        "torchrun.sh": script(
            [_about(choice), f"Run on every host. {static}"],
            [_FIND_LINE],
            [_STOP],
            ["torchrun", f"--nnodes={len(choice.hosts)}", f"--nproc-per-node={each}", _NODE_RANK,
             END, f"--master-addr={choice.hosts[0]}", f"--master-port={_PORT}", _ARGUMENTS],
        ),
    }  # fmt: skip


def _hosts(choice: Choice) -> str:
    return host_lines(("", host, "") for host in choice.hosts)


def _sizes(choice: Choice) -> list[tuple[Name, int]]:
    """Each host with its ranks, in their order."""
    return [
        (host, len(task))
        for host, task in zip(choice.hosts, choice.setup.layout.tasks, strict=True)
    ]


def _about(choice: Choice) -> str:
    return f"{choice.title}: the order of nodes"


def _launcher(
    name: str,
    title: str,
    files: Callable[[Choice], Mapping[str, str]],
    asked: tuple[str, ...],
) -> Framework:
    def refusals(choice: Choice) -> list[str]:
        return [] if choice.hosts else [f"{title} needs nodes with names, and the machine has none"]

    return Framework(name, title, files, refusals, trains=False, starts_ranks=True, asked=asked)


OPEN_MPI = _launcher(
    "openmpi",
    "Open MPI",
    _open_mpi,
    asked=("Open MPI 5.0.11, 2026-11-30", "Debian's Open MPI 4.1.4, 2026-11-30"),
)
MPICH = _launcher("mpich", "MPICH", _mpich, asked=("MPICH 5.0.2, 2026-11-30",))
SLURM = _launcher("slurm", "Slurm", _slurm, asked=("Debian's Slurm 22.05.8, 2026-12-01",))
KUBERNETES = _launcher(
    "kubernetes", "Kubernetes", _kubernetes, asked=("Kubernetes' schema 1.37, 2026-12-01",)
)
TORCHRUN = _launcher("torchrun", "torchrun", _torchrun, asked=("PyTorch 2.13.0, 2026-12-01",))
