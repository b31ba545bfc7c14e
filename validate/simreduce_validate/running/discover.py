"""The GPUs of this machine as a topology, from what `nvidia-smi` prints."""

from __future__ import annotations

import os
import shutil
import subprocess

from simreduce.errors import DeviceError, InputError
from simreduce.topology import Topology, link_classes, load_topology
from simreduce.topology.importers.parts import MODELS, UNKNOWN, GpuModel
from simreduce.topology.importers.topo_m import read_topo_m

_SECONDS = 60.0
_MOST_SPLIT = 64


def this_machine(split: int = 1) -> Topology:
    """The GPUs that `nvidia-smi topo -m` shows, or the parts of the first if `split` is above 1.

    Raises InputError without an `nvidia-smi`, DeviceError if it fails.
    """
    names = _nvidia_smi("--query-gpu=name", "--format=csv,noheader").splitlines()
    model = model_of(names[0] if names else "")
    if split > 1:
        return parts_of(model, split)
    return from_table(_nvidia_smi("topo", "-m"), model)


def from_table(text: str, model: GpuModel = UNKNOWN) -> Topology:
    """The machine of a table of `nvidia-smi topo -m`."""
    machine, _ = read_topo_m(text, "nvidia-smi topo -m", model)
    return machine


def parts_of(model: GpuModel, split: int) -> Topology:
    """One GPU as several. Copies between its parts read and write the one memory. The links to the
    host are of a class of their own.

    No link of this machine says that the parts share that memory and the route to the host, so
    measure before you trust a prediction.
    """
    if not 2 <= split <= _MOST_SPLIT:
        raise InputError(f"--split {split}: a GPU is split into 2 to {_MOST_SPLIT}")
    rates = {"host": link_classes()[model.pcie].bandwidth}
    if model is not UNKNOWN:
        rates |= {"bandwidth": model.memory / 2, "memory": model.memory}
    text = "".join(f",{key}={rate / 1e9:g}GB/s" for key, rate in rates.items())
    return load_topology(f"full:{split}{text}")


def model_of(product: str) -> GpuModel:
    """The model by the driver's name, such as `NVIDIA A100-SXM4-80GB`, or `UNKNOWN`."""
    text = product.upper().replace(" ", "")
    fitting = [
        model for name, model in MODELS.items() if all(part in text for part in name.split("-"))
    ]
    return max(fitting, key=lambda model: len(model.name), default=UNKNOWN)


def visible(gpus: int) -> list[int]:
    """Which of this many GPUs TensorFlow may use, by the numbers in CUDA_VISIBLE_DEVICES."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(gpus))
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) < gpus for part in numbers):
        raise InputError(f"CUDA_VISIBLE_DEVICES={text}: name GPUs by number, 0 to {gpus - 1}")
    found = [int(part) for part in numbers]
    if found != sorted(set(found)) or not found:
        raise InputError(f"CUDA_VISIBLE_DEVICES={text}: name GPUs once each, in ascending order")
    return found


def _nvidia_smi(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise InputError("auto: this machine has no nvidia-smi, so its GPUs are unknown")
    try:
        done = subprocess.run(  # noqa: S603
            [program, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"nvidia-smi {' '.join(arguments)}: {error}") from None
    return done.stdout
