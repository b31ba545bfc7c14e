"""Slurm: where `slurm.sh` puts tasks, on nodes of a cluster that is this machine alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CONFIGURATION = """\
ClusterName=asked
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CryptoType=crypto/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/controller.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/controller.log
SlurmdLogFile={place}/%n.log
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"
TASK = 'echo "$SLURM_PROCID" "$SLURMD_NODENAME" "$SLURM_LOCALID"'
SECONDS = 60


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


@contextlib.contextmanager
def _cluster(place: Path, nodes: dict[str, int]) -> Iterator[None]:
    """A controller and its nodes, each with so many CPUs, until the block ends."""
    ports = _free_ports(len(nodes) + 1)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    sizes = zip(ports[1:], sorted(nodes.items()), strict=True)
    rows = [NODE.format(name=name, port=port, cpus=cpus) for port, (name, cpus) in sizes]
    text = CONFIGURATION.format(ports=ports, user=user, place=place)
    text += "".join([*rows, f"PartitionName=all Nodes={','.join(sorted(nodes))} Default=YES\n"])
    (place / "slurm.conf").write_text(text)
    (place / "state").mkdir()
    os.environ["SLURM_CONF"] = str(place / "slurm.conf")
    started = [subprocess.Popen(["slurmctld", "-D", "-c"])]
    try:
        for name in nodes:
            (place / name).mkdir()
            started.append(subprocess.Popen(["slurmd", "-D", "-N", name]))
        for _ in range(SECONDS):
            said = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True,
                                  text=True, check=False).stdout.split()  # fmt: skip
            if said == [str(len(nodes))]:
                break
            time.sleep(1)
        yield
    finally:
        for each in reversed(started):
            each.kill()  # what they would save is not wanted
            each.wait()


def main(folder: str) -> None:
    """Print the tasks that the script of a folder starts."""
    os.chdir(folder)
    hosts = Path("slurm-hostfile").read_text("utf-8").split()
    nodes = {host: hosts.count(host) for host in hosts}
    with tempfile.TemporaryDirectory() as place, _cluster(Path(place), nodes):
        done = subprocess.run(["sh", "slurm.sh", "sh", "-c", TASK], capture_output=True, text=True,
                              timeout=SECONDS, check=False)  # fmt: skip
        said = subprocess.run(["srun", "--version"], capture_output=True, text=True, check=True)
        switches = re.findall(r"#SBATCH (--switches=\d+)", Path("slurm.sh").read_text("utf-8"))
        tested = subprocess.run(
            ["sbatch", "--test-only", *switches, f"--nodes={len(nodes)}", "--wrap", "true"],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    print(done.stderr, tested.stderr, file=sys.stderr)
    rows = sorted((int(line.split()[0]), *line.split()[1:]) for line in done.stdout.splitlines())
    understood = {
        "ranks": [[node, int(local)] for _, node, local in rows],
        "switches": "taken" if switches and not tested.returncode else "refused",
    }
    print(
        json.dumps({"version": said.stdout.split()[-1], "understood": understood}, sort_keys=True)
    )


if __name__ == "__main__":
    main(sys.argv[1])
