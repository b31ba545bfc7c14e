"""What asking needs, made once in a folder: NCCL's library, and the fakes that it runs on.

Both come from the package index: the library from NVIDIA's wheels, and CUDA's headers, which a C
compiler reads. Neither is installed, and no CUDA has to be.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from simreduce.computing.own_files import check_owner, scratch_folder, user_cache
from simreduce.errors import InputError

VERSIONS = (
    "2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.5",
    "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3",
)  # fmt: skip
"""Versions that answers are kept of, oldest first: the last wheel of each from 2.18 on."""
_OLDEST = 2, 18
_NCCL = "nvidia-nccl-cu12"
_HEADERS = {"nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cuda-nvcc-cu12": "12.9.86"}
_INCLUDES = ("nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include")
_LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
_RUNNER = (
    "ask.c", "interpose.c", "fake_machine.c", "fake_memory.c", "fake_runtime.c", "fake_driver.c",
)  # fmt: skip
_SHARED = {
    "libnvidia-ml.so.1": "fake_nvml.c",
    "libcuda.so": "fake_libcuda.c",
    "libnccl-net-fake.so": "network_plugin.c",
    "libnccl-tuner-fake.so": "tuner_plugin.c",
}
_FLAGS = ("-O1", "-Wall", "-Wextra", "-Wno-unused-parameter")
Stage = Callable[[str], AbstractContextManager[object]]
"""Shows words while something takes long."""


@dataclass(frozen=True, slots=True)
class Tools:
    """A folder with `ask` and the libraries that it loads, and NCCL's library."""

    folder: Path
    library: Path


def full_version(text: str) -> str:
    """`2.30.7` of `2.30`; the newest that answers are kept of for "".

    Raises `InputError` for what is no version, or too old a one.
    """
    if re.fullmatch(r"\d+\.\d+\.\d+", text, re.ASCII):
        if tuple(map(int, text.split("."))) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise InputError(f"{text}: the fakes run NCCL {oldest} and later")
        return text
    known = [
        version for version in VERSIONS if f"{version}.".startswith(f"{text}." if text else "")
    ]
    if not known:
        raise InputError(f"{text}: name the whole version, such as {VERSIONS[-1]}")
    return known[-1]


def prepare(version: str, stage: Stage = nullcontext, folder: Path | None = None) -> Tools:
    """Take and build what is missing, in a folder of the user's unless one is given.

    Raises `InputError` beside a real driver, where there is no compiler or no wheel, and where
    another user may have written what would run.
    """
    if faults := [*_unfit()]:
        raise InputError([f"NCCL's library: {fault}" for fault in faults])
    folder = folder or user_cache() / "simreduce" / "nccl"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _trust(folder)
    library = folder / version
    if not library.exists():
        with stage(f"taking NCCL {version} from the package index"):
            _take({_NCCL: version}, library, (_LIBRARY,))
    below = (Path(_LIBRARY), *Path(_LIBRARY).parents)
    _trust(*(library / each for each in reversed(below)))
    built = _build(folder, stage)
    _trust(built, *built.iterdir())
    return Tools(built, library / _LIBRARY)


def _trust(*paths: Path) -> None:
    """Raise `InputError` for a file or folder that another user may have written."""
    for path in paths:
        try:
            check_owner(path.stat())
        except OSError as error:
            raise InputError(f"NCCL's library: {path}: {error.strerror}") from None


def _unfit() -> list[str]:
    """Why the library cannot be asked here."""
    found = []
    if (system := f"{platform.system()} {platform.machine()}") != "Linux x86_64":
        found.append(f"runs on Linux x86_64, not on {system}")
    if driver := _driver():
        found.append(f"not asked beside a real driver ({driver}); ask on a machine without one")
    if not _compiler():
        found.append("needs a C compiler, and there is no cc, gcc or clang here")
    found += [f"would read {path}, which changes answers unseen; move it away" for path in _files()]
    return found


def _files() -> list[Path]:
    """Files of variables that the library reads wherever it runs."""
    places = [Path("/etc/nccl.conf")]
    with suppress(ImportError, KeyError):  # Windows, and a user without a name
        import pwd  # noqa: PLC0415 - not on Windows

        # NCCL does not take $HOME.
        places.insert(0, Path(pwd.getpwuid(os.getuid()).pw_dir) / ".nccl.conf")
    return [path for path in places if path.exists()]


def _driver() -> str:
    """What there is of a real driver; "" for nothing."""
    for device in Path("/dev").glob("nvidia*"):
        return str(device)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return "libcuda.so.1"
    return ""


def _compiler() -> str | None:
    names = os.environ.get("CC"), "cc", "gcc", "clang"
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _take(wheels: Mapping[str, str], target: Path, prefixes: Sequence[str]) -> None:
    """Unpack what wheels have below these prefixes, all of it or nothing."""
    with scratch_folder("nccl-", target.parent) as scratch:
        for name, version in wheels.items():
            _download(f"{name}=={version}", scratch)
        made = Path(scratch) / "unpacked"
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if n.startswith(tuple(prefixes))]
                if not names:
                    what = f"the wheel {wheel.name} has no {' or '.join(prefixes)}"
                    raise InputError(f"NCCL's library: {what}")
                archive.extractall(made, names)
        _put(made, target)


def _put(made: Path, target: Path) -> None:
    """Give a folder its name, where nobody else writes; another run may have been first."""
    for path in (made, *made.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _download(wheel: str, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", folder, wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = "; ".join(lines or done.stderr.splitlines()[-1:]) or "pip failed"
        raise InputError(f"NCCL's library: no wheel {wheel} from the package index: {why}")


def _sources() -> Path:
    """The folder of C sources: in a wheel of ours, or beside the package."""
    package = Path(__file__).parents[1]
    inside = package / "_nccl"
    return inside if inside.is_dir() else package.parent / "nccl"


def _build(folder: Path, stage: Stage) -> Path:
    """The folder of the built fakes, made anew when a source changes."""
    sources = _sources()
    digest = hashlib.sha256(repr((_FLAGS, _RUNNER, _SHARED, _HEADERS)).encode())
    for path in sorted(sources.glob("*.[ch]")):
        digest.update(path.name.encode() + path.read_bytes())
    built = folder / f"fakes-{digest.hexdigest()[:12]}"
    if built.exists():
        return built
    headers = folder / "-".join(("headers", *_HEADERS.values()))
    if not headers.exists():
        with stage("taking CUDA's headers from the package index"):
            _take(_HEADERS, headers, _INCLUDES)
    _trust(headers)
    with stage("compiling the fakes"), scratch_folder("fakes-", folder) as scratch:
        made = Path(scratch) / "built"
        made.mkdir()
        include = [f"-I{headers / each}" for each in _INCLUDES]
        runner = [str(sources / name) for name in _RUNNER]
        _compile([*include, "-rdynamic", *runner, "-ldl", "-lpthread"], made / "ask")
        for name, source in _SHARED.items():
            _compile(
                ["-shared", "-fPIC", f"-Wl,-soname,{name}", str(sources / source)], made / name
            )
        _put(made, built)
    return built


def build_example(sources: Path, tools: Tools) -> Path:
    """NCCL's example tuner plugin, built from a checkout of NCCL's sources.

    Raises `InputError` where they have none, or it does not compile.
    """
    example = sources / "plugins" / "tuner" / "example"
    if not (example / "plugin.c").is_file():
        raise InputError(f"{sources}: no plugins/tuner/example/plugin.c, as NCCL's sources have it")
    built = tools.folder.parent / "libnccl-tuner-example.so"
    include = (f"-I{example}", f"-I{example / 'nccl'}")
    _compile(["-shared", "-fPIC", *include, str(example / "plugin.c")], built)
    return built


def _compile(arguments: Sequence[str], target: Path) -> None:
    command = [_compiler() or "cc", *_FLAGS, "-o", str(target), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise InputError(f"NCCL's library: {target.name} does not compile:\n{done.stderr}")
