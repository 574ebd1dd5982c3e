"""The files that an environment is made from, gathered from a project: the one that is named, and those that it needs.

    uv.lock            pyproject.toml beside it and of every local package, archives that lie in the project
    requirements.txt   what it includes (-r, -c), archives and folders of archives, pyproject.toml of local packages
    pyproject.toml     itself

Who submits and who builds call the same function, so an environment's digest means the same bytes on both sides. Of a
`pyproject.toml` only what changes an installation counts: another format of the project builds nothing again.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from stoker.core.digests import digest_bytes, digest_value
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen, frozen_by_position
from stoker.host.durable import read_regular
from stoker.host.folders import names_in

RECIPE_VERSION = 1
"""Raised when environments of the same files are built differently."""
LOCK, REQUIREMENTS, PYPROJECT = "uv.lock", "requirements", "pyproject"
_LARGEST_BYTES = 2 << 30
_LARGEST_TEXT_BYTES = 64 << 20
_MOST_FILES = 1000
# uv writes every source on its own line.
_LOCKED = re.compile(r'^source = \{ (editable|virtual|directory|path) = "([^"]*)"', re.MULTILINE)
_REQUIRES = re.compile(r'^requires-python = "([^"]*)"', re.MULTILINE)
_INCLUDES = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=|(?<=-[rc]))(\S+)")
_LINKS = re.compile(r"(?:-f|--find-links)(?:\s+|=)(\S+)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)(.+)")
_WITH_EXTRAS = re.compile(r"([^\[\]]+?)\s*(?:\[([A-Za-z0-9._,\s-]*)\])?")
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2")
_VERSION = re.compile(r"(?:cpython)?[-@]?(\d+\.\d+)")
_OF_PROJECT = ("name", "requires-python", "dependencies", "optional-dependencies", "dynamic")


@frozen
class EnvironmentSources:
    """All files and settings that an environment is built from."""

    kind: str
    path: str
    """The named file, below the project."""
    files: tuple[str, ...]
    """All files, below the project, sorted."""
    digest: str
    python: str
    """The required version; empty: any."""
    extras: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    """Folders of other packages of the project: on the path, not installed."""
    projects: tuple[str, ...] = ()
    """For requirements: the `pyproject.toml` files of local packages, whose dependencies are installed too."""


# Files of tools that Stoker does not run, with what makes of them a file that it can install.
_FOREIGN = {
    "poetry.lock": "run poetry export -o requirements.txt",
    "Pipfile.lock": "run pipenv requirements > requirements.txt",
    "environment.yml": "use an interpreter of each machine (python=PATH), or list the packages in requirements.txt",
}
_FOREIGN |= dict.fromkeys(("environment.yaml", "conda-lock.yml", "pixi.lock"), _FOREIGN["environment.yml"])


@frozen_by_position
class FoundEnvironment:
    """A file of a project's folder that lists the packages of its programs."""

    path: str
    hint: str = ""
    """What to do with a file that no environment is built from."""


def find_environment(folder: str) -> FoundEnvironment | None:
    """Return the file that lists a program's packages, or None: the most exact one that can be installed first."""
    for name in ("uv.lock", "requirements.txt", *_FOREIGN):
        if os.path.isfile(os.path.join(folder, name)):
            return FoundEnvironment(name, _FOREIGN.get(name, ""))
    try:
        said = tomllib.loads(read_regular(os.path.join(folder, "pyproject.toml"), _LARGEST_TEXT_BYTES).decode())
    except (OSError, ValueError):
        return None
    project, tool = said.get("project"), said.get("tool")
    if isinstance(project, dict) and project.get("dependencies"):
        return FoundEnvironment("pyproject.toml")
    if isinstance(tool, dict) and "poetry" in tool:
        return FoundEnvironment("pyproject.toml", f"it is a project of Poetry: {_FOREIGN['poetry.lock']}")
    return None


def named(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse `uv.lock[cuda,plots]` into the path and the extras."""
    found = _WITH_EXTRAS.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no file", hint="uv.lock, or with extras: uv.lock[cuda]")
    extras = (one.strip() for one in (found[2] or "").split(","))
    return found[1], tuple(sorted({one for one in extras if one}))


def kind_of(path: str) -> str:
    """Return the kind of an environment file. Raises `BadInput` if it is none."""
    name = os.path.basename(path)
    if name == "uv.lock":
        return LOCK
    if name == "pyproject.toml":
        return PYPROJECT
    if name.endswith((".txt", ".in")):
        return REQUIREMENTS
    hint = _FOREIGN.get(name, "uv.lock, requirements.txt or pyproject.toml")
    raise BadInput(f"{path or '(no name)'} is not an environment file", hint=hint)


def gather(project: str, path: str, *, python: str = "", extras: Sequence[str] = ()) -> EnvironmentSources:
    """Collect an environment's files. Raises `BadInput`, in one line, for what is missing or can't be sent."""
    kind = kind_of(path)
    made = _Gathering(project, os.path.dirname(path))
    if kind == LOCK:
        made.lock(path)
    elif kind == PYPROJECT:
        made.pyproject(path)
    else:
        made.requirements(path)
        if extras:
            raise BadInput(f"{path} has no extras to choose from", hint="name what it installs in the file")
    wish = python or made.pinned() or made.requires
    identity = [RECIPE_VERSION, kind, path, made.digests, wish, sorted({*extras, *made.extras})]
    return EnvironmentSources(
        kind=kind,
        path=path,
        files=tuple(sorted(made.digests)),
        digest=str(digest_value("environment files", identity)),
        python=wish,
        extras=tuple(sorted({*extras, *made.extras})),
        local=tuple(dict.fromkeys(made.local)),
        projects=tuple(dict.fromkeys(made.projects)),
    )


def without_folders(text: str) -> str:
    """Return requirements without the project's own folders: those are not installed."""
    return "".join(f"# {line}" if _is_folder(line.strip()) else line for line in text.splitlines(keepends=True))


class _Gathering:
    """Collects files."""

    def __init__(self, project: str, folder: str) -> None:
        self._project = project
        self._folder = folder
        self.digests: dict[str, str] = {}
        self.local: list[str] = []
        self.projects: list[str] = []
        self.extras: list[str] = []
        self.requires = ""

    def lock(self, path: str) -> None:
        text = self._text(path)
        self._project_file(os.path.join(self._folder, "pyproject.toml"), needed_by=path)
        for source, where in dict.fromkeys(_LOCKED.findall(text)):
            place = self._below(where, named_in=path)
            if source == "path":
                self._archive(place)
            elif place != self._own():
                self._project_file(os.path.join(place, "pyproject.toml"), needed_by=path)
                self.local.append(place)
        self._beside("uv.toml")
        self.requires = next(iter(_REQUIRES.findall(text)), "")

    def pyproject(self, path: str) -> None:
        said = self._project_file(path)
        if "dependencies" in said.get("project", {}).get("dynamic", ()):
            raise BadInput(
                f"the dependencies in {path} are dynamic: only a build states them", hint="uv lock, and env = uv.lock"
            )
        self._sources(path, said)
        self._beside("uv.toml")
        self.requires = str(said.get("project", {}).get("requires-python", ""))

    def requirements(self, path: str) -> None:
        for line in _lines(self._text(path)):
            if found := _INCLUDES.match(line):
                self._include(path, found[1])
            elif found := _EDITABLE.match(line):
                self._package(found[1].strip(), path)
            elif found := _LINKS.match(line):
                self._links(path, found[1])
            elif _is_path(line):
                self._package(line.partition(" ;")[0].partition(" --")[0].strip(), path)
        self._beside("uv.toml")

    def pinned(self) -> str:
        """Return the version in `.python-version`, without its patch number: machines have other ones."""
        name = os.path.join(self._folder, ".python-version")
        lines = _lines(self._text(name)) if os.path.isfile(os.path.join(self._project, name)) else []
        found = _VERSION.match(lines[0]) if lines else None
        return found[1] if found is not None else ""

    def _include(self, path: str, word: str) -> None:
        if word.lower().startswith("file:"):
            # It would be read on each machine with the worker's rights, and printed if it is invalid.
            raise BadInput(f"{word} in {path} is not supported", hint="name it by its path below the project")
        if "://" in word:
            return
        place = self._below(word, named_in=path, beside=os.path.dirname(path))
        if place not in self.digests:
            if place.endswith("pyproject.toml"):
                self._project_file(place)
                self.projects.append(place)
            else:
                self.requirements(place)

    def _package(self, word: str, path: str) -> None:
        """Add a package of the project that requirements name: an archive, or a folder that is not installed."""
        where, extras = named(word.removeprefix("file:"))
        if "://" in where or where.startswith("/"):
            return
        place = self._below(where, named_in=path)
        if where.endswith(_ARCHIVES):
            self._archive(place)
            return
        file = os.path.join(place, "pyproject.toml")
        said = self._project_file(file, needed_by=path)
        if "dependencies" in said.get("project", {}).get("dynamic", ()):
            raise BadInput(
                f"the dependencies in {file} are dynamic: only a build states them", hint=f"write them into {path}"
            )
        self.projects.append(file)
        self.extras += extras
        if place != ".":
            self.local.append(place)

    def _links(self, path: str, word: str) -> None:
        if "://" in word or word.startswith("/"):
            return
        place = self._below(word, named_in=path)
        for name in names_in(os.path.join(self._project, place)):
            if name.endswith(_ARCHIVES):
                self._archive(os.path.join(place, name))

    def _sources(self, path: str, said: dict[str, Any]) -> None:
        """Add what `[tool.uv.sources]` takes from the project itself."""
        sources = said.get("tool", {}).get("uv", {}).get("sources", {})
        for name, source in sources.items() if isinstance(sources, dict) else ():
            for one in source if isinstance(source, list) else [source]:
                where = one.get("path") if isinstance(one, dict) else None
                if isinstance(where, str) and where.endswith(_ARCHIVES):
                    self._archive(self._below(where, named_in=path))
                elif where is not None or (isinstance(one, dict) and one.get("workspace")):
                    message = f"{name} in {path} is a folder of the project"
                    raise BadInput(
                        message, hint="run uv lock and use env = uv.lock, which lists the folder's dependencies"
                    )

    def _project_file(self, place: str, *, needed_by: str = "") -> dict[str, Any]:
        place = os.path.normpath(place)
        text = self._text(place, needed_by=needed_by)
        try:
            said = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{place} is no TOML: {error}") from None
        project, tool = said.get("project", {}), said.get("tool", {})
        if not isinstance(project, dict) or not isinstance(tool, dict):
            raise BadInput(f"{place} is not a valid pyproject.toml")
        counts = [
            {name: project[name] for name in _OF_PROJECT if name in project},
            said.get("dependency-groups", {}),
            tool.get("uv", {}),
        ]
        self.digests[place] = str(digest_value("project file", _plain(counts)))
        return said

    def _beside(self, name: str) -> None:
        if os.path.isfile(os.path.join(self._project, self._folder, name)):
            self._text(os.path.join(self._folder, name))

    def _archive(self, place: str) -> None:
        self._read(place, _LARGEST_BYTES)

    def _text(self, place: str, *, needed_by: str = "") -> str:
        place = os.path.normpath(place)
        data = self._read(place, _LARGEST_TEXT_BYTES, needed_by=needed_by)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadInput(f"{place} is no text") from None

    def _read(self, place: str, limit_bytes: int, *, needed_by: str = "") -> bytes:
        if len(self.digests) >= _MOST_FILES:
            raise BadInput(f"more than {_MOST_FILES:,} files belong to the environment")
        if place.startswith(("..", "/")) or "\0" in place:
            raise BadInput(f"{place} is outside of the project", hint="env names a file below the project's folder")
        try:
            # The store shows the files of a tree as links to its blobs.
            data = read_regular(os.path.realpath(os.path.join(self._project, place)), limit_bytes)
        except FileNotFoundError:
            wants = f", and {needed_by} needs it" if needed_by else ""
            hint = "run: uv lock" if place.endswith("uv.lock") else "check the spelling"
            raise BadInput(f"file not found: {place}{wants}", hint=hint) from None
        except OSError as error:
            raise BadInput(f"{place} can't be read: {(error.strerror or str(error)).lower()}") from None
        self.digests[place] = str(digest_bytes(data))
        return data

    def _below(self, where: str, *, named_in: str, beside: str | None = None) -> str:
        """Return a path below the project. Raises `BadInput` for a path elsewhere: it is not sent."""
        place = os.path.normpath(os.path.join(self._folder if beside is None else beside, where))
        if place.startswith(("..", "/")):
            message = f"{where} in {named_in} is outside of the project"
            raise BadInput(message, hint="submit from the folder that has both")
        return place

    def _own(self) -> str:
        return os.path.normpath(self._folder or ".")


def _lines(text: str) -> list[str]:
    """Return the lines of requirements without comments; continued lines are joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _is_path(line: str) -> bool:
    return line.startswith((".", "file:")) or (line.endswith(_ARCHIVES) and "://" not in line and "@" not in line)


def _is_folder(line: str) -> bool:
    found = _EDITABLE.match(line)
    where = found[1] if found else line if _is_path(line) else ""
    return bool(where) and "://" not in where and not where.partition(" ")[0].endswith(_ARCHIVES)


def _plain(value: Any) -> Any:
    """Return TOML data as values that have a digest: times become texts."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
