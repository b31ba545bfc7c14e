"""Open MPI and MPICH: where their scripts put ranks, run on the first host.

Open MPI's script runs on the last host, too. Hosts are namespaces of this machine with a name each;
the program of this environment runs in them, or else Debian's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNSHARE = ["unshare", "--uts", "--mount", *["--map-root-user"] * bool(os.geteuid())]
ENTER = 'mount --bind "$HOSTS" /etc/hosts && hostname "$1" && shift && eval "$@"'
REMOTE = f"""\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
exec {" ".join(UNSHARE)} sh -c '{ENTER}' sh "$@"
"""
"""What starts a command on another host, in the place of ssh."""
RANK = """\
#!/bin/sh
echo "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" "$(hostname)" \\
  "${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}" >> "$RANKS"
"""
FILES = {"mpirun.sh": ("hostfile", "mpirun"), "mpiexec.sh": ("mpich-hostfile", "mpiexec")}
MACHINE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none",
}  # fmt: skip
"""This machine has fewer cores than the hosts that it stands for, and its user may be root."""


def main(folder: str) -> None:
    """Print the ranks that the script of a folder starts."""
    os.chdir(folder)
    [script] = [name for name in FILES if Path(name).exists()]
    hostfile, command = FILES[script]
    hosts = [re.split("[ :]", line)[0] for line in Path(hostfile).read_text().splitlines()
             if not line.startswith("#")]  # fmt: skip
    own = Path(sys.executable).parent / command
    real = own if own.exists() else shutil.which(f"{command}.openmpi")
    with tempfile.TemporaryDirectory() as place:
        programs = {"remote": REMOTE, "rank": RANK, command: f'#!/bin/sh\nexec {real} "$@"\n'}
        for name, text in programs.items():
            Path(place, name).write_text(text)
            Path(place, name).chmod(0o755)
        names = (f"127.0.1.{i} {host}\n" for i, host in enumerate(hosts, 1))
        Path(place, "hosts").write_text("".join(["127.0.0.1 localhost\n", *names]))
        remote = str(Path(place, "remote"))
        environment = os.environ | MACHINE | {
            "PATH": f"{place}:{os.environ['PATH']}", "HOSTS": str(Path(place, "hosts")),
            "OMPI_MCA_plm_rsh_agent": remote, "PRTE_MCA_plm_ssh_agent": remote,
            "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": remote,
        }  # fmt: skip

        def ranks(host: str) -> list[list[object]] | str:
            """The host of each rank and its number there, if the script runs on a host."""
            found = Path(place, f"ranks-{host}")
            start = [
                *UNSHARE,
                "sh",
                "-c",
                ENTER,
                "sh",
                host,
                "sh",
                script,
                str(Path(place, "rank")),
            ]
            done = subprocess.run(
                start, env=environment | {"RANKS": str(found)}, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            print(done.stderr, file=sys.stderr)
            if done.returncode:
                return "stops"
            rows = sorted((int(line.split()[0]), *line.split()[1:])
                          for line in found.read_text().splitlines())  # fmt: skip
            return [[at, int(local)] for _, at, local in rows]

        understood = {"ranks": ranks(hosts[0])}
        if script == "mpirun.sh":  # MPICH takes every address of this machine for the host itself
            understood["ranks if run on the last host"] = ranks(hosts[-1])
    said = subprocess.run(
        [str(real), "--version"], capture_output=True, text=True, check=True
    ).stdout
    version = re.search(r"\d+\.\d+\.\d+", said)
    print(json.dumps({"version": version and version[0], "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
