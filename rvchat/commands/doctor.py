"""`rvchat doctor`: what rvchat finds on this machine, what is wrong with it, and what mends that."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rvchat.commands.terminal import print_json
from rvchat.config import Paths
from rvchat.engine.memory import gigabytes
from rvchat.errors import RvchatError

if TYPE_CHECKING:
    from rvchat.hub.devices import Devices
    from rvchat.hub.machine import Machine

PACKAGES = ("rvchat", "jax", "jaxlib", "numpy", "textual", "huggingface-hub", "tokenizers", "safetensors", "gguf")
PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu")
VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
# Below this a folder will soon be too full for anything.
LITTLE_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class Problem:
    """`serious`: rvchat cannot answer before it is mended. `mend`: a command, or what to do."""

    text: str
    mend: str
    serious: bool = False


@dataclass(frozen=True, slots=True)
class Folder:
    """`free`: bytes; None where nothing says. `used` by rvchat, or by every program that shares the folder."""

    use: str
    path: str
    used: int
    free: int | None
    writable: bool


def add_arguments(
    subparsers: argparse._SubParsersAction[Any], common: Sequence[argparse.ArgumentParser] = (), **defaults: Any
) -> None:
    doctor = subparsers.add_parser("doctor", help="look at the machine, and say what is wrong", parents=list(common))
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(**defaults)


def run(paths: Paths, *, as_json: bool) -> int:
    """Prints the report; 1 where something serious is wrong."""
    from rvchat.hub import devices

    found = devices.probe()
    machine = _machine(found)
    report = _report(paths, found, machine)
    problems = problems_of(found, report["folders"])
    try:
        report["models"] = _models(paths, machine)
    except RvchatError as error:
        report["models"] = []
        problems.append(Problem(error.message, error.hint, serious=True))
    if as_json:
        whole = {**report, "folders": [asdict(f) for f in report["folders"]], "problems": [asdict(p) for p in problems]}
        print_json(whole, indent=1)
    else:
        _write(report, problems)
    return 1 if any(problem.serious for problem in problems) else 0


def _machine(found: Devices) -> Machine:
    from rvchat.hub.machine import Machine

    first = found.devices[0] if found.devices else None
    if first is None or first.platform == "cpu":
        return Machine.host()
    free = None if first.limit is None else first.limit - (first.used or 0)
    return Machine(first.platform, first.kind, free, first.limit)


def _report(paths: Paths, found: Devices, machine: Machine) -> dict[str, Any]:
    from rvchat.hub.place import Place

    folders = [
        _folder("conversations and models", paths.data),
        _folder("settings", paths.settings),
        _folder("compiled programs", paths.cache),
        _folder("models from the hub", Place.of().cache),
    ]
    return {
        "versions": {"python": platform.python_version(), "system": platform.platform(), **_versions()},
        "devices": [asdict(device) for device in found.devices],
        "memory": {"platform": machine.platform, "free_bytes": machine.free, "total_bytes": machine.total},
        "cores": os.cpu_count(),
        "folders": folders,
        "environment": _environment(),
    }


def _versions() -> dict[str, str | None]:
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for name in (*PACKAGES, *PLUGINS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in PACKAGES:
                versions[name] = None
    return versions


def _environment() -> dict[str, str]:
    """What changes how rvchat works; of secrets only that they are there."""
    found = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    set_ = [name for name in (*PROXIES, *(name.lower() for name in PROXIES)) if os.environ.get(name)]
    found |= dict.fromkeys(set_, "set")
    if os.environ.get("HF_TOKEN"):
        found["HF_TOKEN"] = "set"
    return found


def _folder(use: str, path: Path) -> Folder:
    from rvchat.hub.disk import free_bytes

    place = next((p for p in (path, *path.parents) if os.access(p, os.F_OK)), path)
    used = 0
    for root, _, files in os.walk(path):
        for file in files:
            entry = Path(root, file)
            used += entry.lstat().st_size if entry.exists() and not entry.is_symlink() else 0
    return Folder(use, str(path), used, free_bytes(path), place.is_dir() and os.access(place, os.W_OK))


def _models(paths: Paths, machine: Machine) -> list[dict[str, Any]]:
    """Which models fit, and with how much context."""
    from rvchat.hub.listing import listing

    return [
        {
            "name": row.name,
            "installed": row.state == "installed",
            "verdict": row.fit.verdict if row.fit is not None else None,
            "given_context": row.fit.given if row.fit is not None else None,
            "longest_context": row.fit.longest if row.fit is not None else None,
            "needed_bytes": row.fit.needed if row.fit is not None else None,
            "problem": row.problem or None,
        }
        for row in listing(paths, machine)
    ]


def problems_of(
    found: Devices, folders: Sequence[Folder], *, nodes: Path = Path("/dev"), modules: Path = Path("/proc/driver")
) -> list[Problem]:
    """What is wrong, the worst first. `nodes` and `modules`: where drivers show their devices."""
    problems = []
    seen = {device.platform for device in found.devices}
    if not found.devices:
        last = found.said.splitlines()[-1] if found.said else ""
        mend = "unset JAX_PLATFORMS" if "JAX_PLATFORMS" in os.environ else "pip install --upgrade jax jaxlib"
        problems.append(Problem(f"jax finds no device: {found.error or last}", mend, serious=True))
    if found.jax and found.jaxlib and found.jax != found.jaxlib:
        text = f"jax {found.jax} and jaxlib {found.jaxlib} are of different versions"
        problems.append(Problem(text, "pip install --upgrade jax jaxlib"))
    problems += _accelerators(seen, found, nodes, modules)
    for folder in folders:
        if not folder.writable:
            problems.append(
                Problem(f"{folder.path} ({folder.use}) cannot be written to", f"chown -R $USER {folder.path}", True)
            )
        if folder.free is not None and folder.free < LITTLE_DISK:
            text = f"{gigabytes(folder.free)} are free for {folder.use} ({folder.path})"
            problems.append(Problem(text, "rvchat models rm NAME, or HF_HOME on another disk"))
    return sorted(problems, key=lambda problem: not problem.serious)


def _accelerators(seen: set[str], found: Devices, nodes: Path, modules: Path) -> list[Problem]:
    """Devices that are there and that jax does not use."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and "cpu" in wanted.split(","):
        return []
    problems, versions = [], _versions()
    cuda = any(name in versions for name in PLUGINS[:2])
    nvidia = (nodes / "nvidia0").exists() or (modules / "nvidia").exists()
    if nvidia and "gpu" not in seen:
        if not cuda:
            problems.append(
                Problem("there is an NVIDIA GPU, and jax has no plugin for it", "pip install 'rvchat[cuda]'")
            )
        elif not (nodes / "nvidia0").exists():
            text = "the NVIDIA driver is loaded, and its devices cannot be seen here"
            problems.append(Problem(text, "start the container with --gpus all, or run: nvidia-modprobe -u -c=0"))
        else:
            reason = found.said.splitlines()[-1] if found.said else found.error or "it does not say why"
            text = f"there is an NVIDIA GPU, and jax cannot use it: {reason}"
            problems.append(Problem(text, "nvidia-smi must name a driver of CUDA 13 or newer; update it, then reboot"))
    if cuda and not nvidia and "gpu" not in seen:
        text = "jax's plugin for NVIDIA GPUs is installed, and there is no driver for one"
        problems.append(Problem(text, "install the NVIDIA driver (nvidia-smi must work), or uninstall the plugin"))
    if any(nodes.glob("accel*")) and "tpu" not in seen:
        if "libtpu" not in versions:
            problems.append(Problem("there is a TPU, and jax has no plugin for it", "pip install 'rvchat[tpu]'"))
        else:
            text = "there is a TPU, and jax cannot use it: another program may hold it"
            problems.append(Problem(text, "lsof /dev/accel* names that program"))
    return problems


def _write(report: dict[str, Any], problems: Sequence[Problem]) -> None:
    for name, version in report["versions"].items():
        print(f"{name:18} {version or 'not installed'}")
    print()
    for device in report["devices"]:
        limit = f", {gigabytes(device['limit'])}" if device["limit"] else ""
        print(f"{'device':18} {device['platform']}: {device['kind']}{limit}")
    memory = report["memory"]
    if memory["free_bytes"] is not None and memory["total_bytes"] is not None:
        print(f"{'memory':18} {memory['free_bytes'] / 1e9:.1f} of {memory['total_bytes'] / 1e9:.1f} GB free")
    print(f"{'cores':18} {report['cores']}\n")
    for folder in report["folders"]:
        free = "" if folder.free is None else f", {gigabytes(folder.free)} free"
        print(f"{folder.use:26} {folder.path} ({gigabytes(folder.used)}{free})")
    for name, value in report["environment"].items():
        print(f"{name:26} {value}")
    print()
    for model in report["models"]:
        here = "installed" if model["installed"] else ""
        context = f"context {model['given_context']:,}" if model["given_context"] else ""
        print(f"{model['name']:30} {model['verdict'] or '?':8} {context:18} {here}".rstrip())
    print()
    if not problems:
        print("Nothing is wrong.")
    for problem in problems:
        print(f"{'Wrong' if problem.serious else 'Note'}: {problem.text}.\n  {problem.mend}")
