"""Which torch each Python of this machine has, read from the files of its installation: nothing is started or imported.

An installed torch says its version and what it was built for in `torch/version.py`, and again in the name of its
`.dist-info` folder. Only `ask_torch`, for a torch that is put on the path in other ways, starts a child.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.hardware.probes.asking import Asker
from stoker.hardware.probes.marked import marked_objects
from stoker.hardware.probes.witnesses.torch_witness import question
from stoker.host.durable import read_regular
from stoker.model.capability import Interpreter
from stoker.model.frozen import changed
from stoker.model.printable import one_line

ASKING_S = 60.0
"""How long a torch may take to be imported, where somebody asks for it."""
_MOST_BYTES = 64 * 1024
_BY_NAME = re.compile(r"python(3\.\d+)")
_INSTALLED = re.compile(r"torch-([^-]+)\.(?:dist|egg)-info", re.IGNORECASE)
_SAID = re.compile(r"""^(__version__|cuda|hip)\s*(?::[^=\n]+)?=\s*['"]([^'"\n]*)['"]""", re.MULTILINE)


def read_interpreters(paths: Iterable[str], home: str) -> tuple[Interpreter, ...]:
    """Look at each Python once, however many names lead to its environment. `home` is where a user's packages lie."""
    seen: set[tuple[str, str]] = set()
    found = []
    for path in paths:
        # Environments share their base's program, and several Pythons may lie in one folder.
        which = (os.path.realpath(os.path.dirname(path)), os.path.realpath(path))
        if path and which not in seen:
            seen.add(which)
            found.append(read_interpreter(path, home))
    return tuple(found)


def read_interpreter(path: str, home: str) -> Interpreter:
    """Look at one Python: its version and its torch, as far as files tell."""
    version, folders = _own() if path == sys.executable else _layout(path, home)
    torch, torch_cuda = torch_in(folders)
    why = "" if torch else "there is no torch among its packages" if folders else "its packages were not found"
    return Interpreter(path=path, version=version, torch=torch, torch_cuda=torch_cuda, why=why)


def ask_torch(one: Interpreter, ask: Asker) -> Interpreter:
    """Have a child import the torch of an interpreter of which files tell none: it may come by other ways."""
    if one.torch:
        return one
    said: dict[str, Any] = {}
    for told in marked_objects(ask.ask(question(one.path), limit_s=ASKING_S).out):
        said.update(told)
    if not said.get("torch"):
        why = said.get("error") or ("it has none" if said.get("missing") else "it gave no answer")
        return changed(one, why=f"asked for torch: {one_line(str(why), 200)}")
    built = said.get("cuda") or said.get("hip") or ""
    return changed(one, torch=str(said["torch"]), torch_cuda=str(built), why="")


def torch_in(folders: Iterable[str]) -> tuple[str, str]:
    """Give the version of the first torch in these folders, and of the CUDA or ROCm that it was built for."""
    for folder in folders:
        said = _said(os.path.join(folder, "torch", "version.py"))
        version = said.get("__version__", "") or _named(folder)
        if version:
            return version, said.get("cuda", "") or said.get("hip", "")
    return "", ""


def _own() -> tuple[str, list[str]]:
    return ".".join(map(str, sys.version_info[:3])), [folder for folder in sys.path if os.path.isdir(folder)]


def _layout(path: str, home: str) -> tuple[str, list[str]]:
    """Give the version of a Python and the folders of its packages, as installations are laid out."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    config = _environment_config(prefix)
    if config:
        version = config.get("version", "") or config.get("version_info", "")
        places = [prefix]
        if config.get("include-system-site-packages", "").lower() == "true" and config.get("home"):
            places.append(os.path.dirname(config["home"]))
        return ".".join(version.split(".")[:3]), [one for place in places for one in _packages(place, _minor(version))]
    named = _BY_NAME.search(os.path.basename(os.path.realpath(path)))
    minor = named[1] if named else ""
    prefixes = dict.fromkeys([prefix, os.path.dirname(os.path.dirname(os.path.realpath(path)))])
    users = os.path.join(home, ".local") if home else ""
    return minor, [one for place in (users, *prefixes) if place for one in _packages(place, minor)]


def _packages(prefix: str, minor: str) -> Iterator[str]:
    """Give the folders of packages below a prefix; of the one Python that is there, if its version is not known."""
    minor = minor or _only_minor(prefix)
    if not minor:
        return
    for library in ("lib", "lib64", os.path.join("local", "lib")):
        for name in (f"python{minor}/site-packages", f"python{minor}/dist-packages", "python3/dist-packages"):
            folder = os.path.join(prefix, library, name)
            if os.path.isdir(folder):
                yield folder


def _only_minor(prefix: str) -> str:
    try:
        names = os.listdir(os.path.join(prefix, "lib"))
    except OSError:
        return ""
    minors = {found[1] for name in names if (found := _BY_NAME.fullmatch(name))}
    return minors.pop() if len(minors) == 1 else ""


def _environment_config(prefix: str) -> Mapping[str, str]:
    text = _text(os.path.join(prefix, "pyvenv.cfg"))
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _said(path: str) -> Mapping[str, str]:
    return dict(_SAID.findall(_text(path)))


def _named(folder: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    return next((found[1] for name in names if (found := _INSTALLED.fullmatch(name))), "")


def _text(path: str) -> str:
    try:
        # Some installers fill an environment with links.
        return read_regular(os.path.realpath(path), _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
