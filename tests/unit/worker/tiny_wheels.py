"""Wheels of a few hundred bytes, made on the spot, and projects that are made of them: nothing is fetched."""

import base64
import hashlib
import os
import sys
import zipfile

from stoker.core.clock import SystemClock
from stoker.store.environment_cache import EnvironmentCache
from stoker.worker.environments.environment_builder import Maker


def wheel(folder, name, version="1.0", *, tag="py3-none-any", needs=(), code=""):
    os.makedirs(folder, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {one}\n" for one in needs
    )
    files = {
        f"{name}/__init__.py": code or f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    path = os.path.join(folder, f"{name}-{version}-{tag}.whl")
    with zipfile.ZipFile(path, "w") as archive:
        for name_in, text in files.items():
            archive.writestr(zipfile.ZipInfo(name_in, (2020, 1, 1, 0, 0, 0)), text)
    return path


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def locked_project(folder, wheels, *, python=">=3.10", groups=""):
    """Write a project whose lock takes its packages from wheels that lie beside it."""
    os.makedirs(folder, exist_ok=True)
    names = [os.path.basename(path).split("-")[0] for path in wheels]
    with open(os.path.join(folder, "pyproject.toml"), "w", encoding="utf-8") as file:
        file.write(
            f'[project]\nname = "study"\nversion = "0.1"\nrequires-python = "{python}"\ndependencies = {names}\n'
        )
        file.write("[tool.uv.sources]\n")
        file.writelines(
            f'{name} = {{ path = "wheels/{os.path.basename(path)}" }}\n'
            for name, path in zip(names, wheels, strict=True)
        )
        file.write(groups)
    with open(os.path.join(folder, "uv.lock"), "w", encoding="utf-8") as file:
        file.write(lock_text(wheels, python=python))


def lock_text(wheels, *, python=">=3.10"):
    lines = ["version = 1", "revision = 3", f'requires-python = "{python}"', ""]
    for path in wheels:
        name, version = os.path.basename(path).split("-")[:2]
        lines += [
            "[[package]]",
            f'name = "{name}"',
            f'version = "{version}"',
            f'source = {{ path = "wheels/{os.path.basename(path)}" }}',
            "wheels = [",
            f'    {{ filename = "{os.path.basename(path)}", hash = "sha256:{digest_of(path)}" }},',
            "]",
            "",
        ]
    names = [os.path.basename(path).split("-")[0] for path in wheels]
    lines += ["[[package]]", 'name = "study"', 'version = "0.1"', 'source = { virtual = "." }', "dependencies = ["]
    lines += [f'    {{ name = "{name}" }},' for name in names]
    lines += ["]", "", "[package.metadata]", "requires-dist = ["]
    lines += [
        f'    {{ name = "{name}", path = "wheels/{os.path.basename(path)}" }},'
        for name, path in zip(names, wheels, strict=True)
    ]
    return "\n".join([*lines, "]", ""])


def maker_in(home, **environment):
    """Give a maker that knows this Python alone and never asks the network."""
    around = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": os.path.join(home, "uv-cache"),
        **environment,
    }
    clock = SystemClock()
    shelf = EnvironmentCache(os.path.join(home, "envs"), clock=clock)
    return Maker(shelf=shelf, environment=around, own_prefix=sys.prefix, clock=clock)
