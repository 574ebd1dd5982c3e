"""What uv installs when it runs for a submitter as another user: a text of ours, made from files that we read strictly.

uv expands variables, follows includes, and takes options and addresses from whatever it reads. So it does not read the
submitter's files here. We read them by rules of our own, which know packages by name, wheels of the project, and files
of the project that include each other. Everything else is refused with its reason. uv reads what we wrote from what was
accepted: requirements by name and version, and wheels that lie beside them.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen
from stoker.core.machine import Platform
from stoker.host.durable import read_regular
from stoker.jobs.pack.environment_files import LOCK, PYPROJECT, EnvironmentSources
from stoker.jobs.pack.lock_file import read_lock
from stoker.jobs.pack.wheels import needed_exactly

_HINT = "packages by name, files and wheels of the project; indexes are configured by the worker's operator (UV_INDEX)"
_LARGEST_BYTES = 64 << 20
_MOST_LINES = 10_000
# Letters that a requirement by name needs. What uv gives a meaning of its own ($, @, #, \) is not among them.
_PLAIN = re.compile(r"""[A-Za-z0-9 ._,;:=<>!~*+()\[\]"'/-]+""")
_WHEEL = re.compile(r"[A-Za-z0-9._+!-]+\.whl")
_HASH = re.compile(r"(?:sha256|sha384|sha512):[0-9a-f]{64,128}")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTION = re.compile(r"(--[a-z][a-z-]*|-[a-zA-Z])(?:\s*=\s*|\s*)(.*)")
_PATH = re.compile(r"([^\[\]]+?)\s*(?:\[([A-Za-z0-9._,\s-]*)\])?")
_INCLUDE, _CONSTRAINT = ("-r", "--requirement"), ("-c", "--constraint")
_EDITABLE, _LINKS = ("-e", "--editable"), ("-f", "--find-links")
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2")


@frozen
class Installation:
    """What uv is to install, and the files that its text names."""

    requirements: tuple[str, ...]
    """The lines of its requirements file."""
    constraints: tuple[str, ...] = ()
    wheels: Mapping[str, str] = fresh(factory=dict)
    """Wheels of the project: place beside the requirements file → path below the project."""
    has_links: bool = False
    """Some of them only take part in resolving: those in the folder `links`."""
    is_complete: bool = False
    """All packages are listed: dependencies are not resolved."""


def read_installation(sources: EnvironmentSources, project: str, platform: Platform, version: str) -> Installation:
    """Read what an environment's files install with a Python version. Raises `BadInput` for what is not accepted."""
    reading = _Reading(sources, project)
    if sources.kind == LOCK:
        reading.lock(platform, version)
    elif sources.kind == PYPROJECT:
        reading.project_file(sources.path)
    else:
        reading.requirements_file(sources.path)
    return Installation(
        requirements=tuple(dict.fromkeys(reading.requirements)),
        constraints=tuple(dict.fromkeys(reading.constraints)),
        wheels=reading.wheels,
        has_links=reading.has_links,
        is_complete=sources.kind == LOCK,
    )


class _Reading:
    """One installation while it is read."""

    def __init__(self, sources: EnvironmentSources, project: str) -> None:
        self._sources = sources
        self._project = project
        self._folder = os.path.dirname(sources.path)
        self._seen: set[tuple[str, bool]] = set()
        self.requirements: list[str] = []
        self.constraints: list[str] = []
        self.wheels: dict[str, str] = {}
        self.has_links = False

    def lock(self, platform: Platform, version: str) -> None:
        path = self._sources.path
        for one in needed_exactly(read_lock(self._text(path)), platform, version, extras=self._sources.extras):
            if one.source == "registry":
                self.requirements.append(f"{_by_name(f'{one.name}=={one.version}', path)}{_hashes(one.hashes, path)}")
            elif one.source == "path":
                self.requirements.append(f"{self._wheel(one.file, path)}{_hashes(one.hashes, path)}")
            elif one.local is None:
                _refuse(f"{one.name}: {one.source or 'no source'}", path)

    def project_file(self, path: str) -> None:
        try:
            data = tomllib.loads(self._text(path))
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{path} is not valid TOML: {error}") from None
        project, sources = _table(data, "project"), _table(_table(_table(data, "tool"), "uv"), "sources")
        optional = _table(project, "optional-dependencies")
        own = canonicalize_name(str(project.get("name", "")))
        by_source = {canonicalize_name(name): source for name, source in sources.items()}
        ahead = [*_texts(project.get("dependencies"), path)]
        extras = list(self._sources.extras)
        seen: set[str] = set()
        while ahead or extras:
            if not ahead:
                extra = extras.pop()
                ahead += [] if extra in seen else _texts(optional.get(extra), path)
                seen.add(extra)
                continue
            found = _requirement(ahead.pop(0), path)
            name = canonicalize_name(found.name)
            if name == own:
                # A project's extra may name its other extras.
                extras += sorted(found.extras)
            elif name in by_source:
                self.requirements.append(self._sourced(found, by_source[name], path))
            else:
                self.requirements.append(_plain(str(found), path))

    def requirements_file(self, path: str, *, is_constraint: bool = False) -> None:
        if (path, is_constraint) in self._seen:
            return
        self._seen.add((path, is_constraint))
        for line in _lines(self._text(path), path):
            if line.startswith("-"):
                self._option(line, path, is_constraint=is_constraint)
                continue
            words, hashes = _without_hashes(line, path)
            if not is_constraint and _is_path(words):
                self._path(words, hashes, path)
            else:
                kept = self.constraints if is_constraint else self.requirements
                kept.append(f"{_by_name(words, path)}{hashes}")

    def _option(self, line: str, path: str, *, is_constraint: bool) -> None:
        found = _OPTION.fullmatch(line)
        option = found[1] if found is not None else ""
        try:
            (value,) = shlex.split(found[2]) if found is not None else ("",)
        except ValueError:
            value = ""
        beside = os.path.dirname(path)
        if value and option in _INCLUDE + _CONSTRAINT:
            place = self._below(value, path, beside)
            if place.endswith("pyproject.toml") and option in _INCLUDE and not is_constraint:
                self.project_file(place)
            else:
                self.requirements_file(place, is_constraint=is_constraint or option in _CONSTRAINT)
        elif value and option in _EDITABLE and not is_constraint:
            self._path(value, "", path)
        elif value and option in _LINKS and not is_constraint:
            self._links(value, path)
        else:
            _refuse(line, path)

    def _path(self, word: str, hashes: str, path: str) -> None:
        """Take a wheel of the project, or the dependencies of a package whose folder lies in the project."""
        found = _PATH.fullmatch(word)
        where = found[1] if found is not None else ""
        if not where:
            _refuse(word, path)
        if where.endswith(_ARCHIVES):
            self.requirements.append(f"{self._wheel(where, path)}{hashes}")
        else:
            self.project_file(self._below(os.path.join(where, "pyproject.toml"), path, self._folder))

    def _links(self, word: str, path: str) -> None:
        folder = self._below(word, path, self._folder, is_file=False)
        for one in self._sources.files:
            name = os.path.basename(one)
            if os.path.dirname(one) == ("" if folder == "." else folder) and _WHEEL.fullmatch(name):
                self.has_links = True
                self.wheels[os.path.join("links", name)] = one

    def _sourced(self, needed: Requirement, source: Any, path: str) -> str:
        """Return the line for a package that `[tool.uv.sources]` takes from a wheel of the project."""
        where = source.get("path") if isinstance(source, dict) and set(source) == {"path"} else None
        if not isinstance(where, str):
            _refuse(f"tool.uv.sources.{needed.name}", path)
        extras = f"[{','.join(sorted(needed.extras))}]" if needed.extras else ""
        marker = _plain(f" ; {needed.marker}", path) if needed.marker is not None else ""
        return f"{self._wheel(str(where), path)}{extras}{marker}"

    def _wheel(self, where: str, path: str) -> str:
        """Return how the requirements file names a wheel of the project."""
        place = self._below(where, path, self._folder)
        name = os.path.basename(place)
        try:
            parse_wheel_filename(name)
        except (InvalidWheelFilename, InvalidVersion):
            _refuse(where, path)
        if not _WHEEL.fullmatch(name):
            _refuse(where, path)
        known = next((beside for beside, one in self.wheels.items() if one == place and beside[0] == "w"), "")
        beside = known or os.path.join("wheels", str(len(self.wheels)), name)
        self.wheels[beside] = place
        return f"./{beside}"

    def _below(self, where: str, path: str, beside: str, *, is_file: bool = True) -> str:
        """Return a path below the project, if it is one of the environment's files."""
        place = os.path.normpath(os.path.join(beside, where))
        is_ours = not os.path.isabs(place) and not place.startswith("..") and ":" not in place
        if not is_ours or (is_file and place not in self._sources.files):
            _refuse(where, path)
        return place

    def _text(self, path: str) -> str:
        try:
            return read_regular(os.path.join(self._project, path), _LARGEST_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{path} is no text that can be read") from None


def _lines(text: str, path: str) -> Iterator[str]:
    """Return the lines without comments, with continued lines joined."""
    if any(not char.isprintable() and char not in "\t\r\n" for char in text):
        raise BadInput(f"{path} has characters that are no text", hint=_HINT)
    lines = re.sub(r"\\\r?\n", " ", text).split("\n")
    if len(lines) > _MOST_LINES:
        raise BadInput(f"{path} has more than {_MOST_LINES:,} lines")
    for line in filter(None, (_COMMENT.sub("", line).strip() for line in lines)):
        if "$" in line:
            _refuse(line, path)
        yield line


def _without_hashes(line: str, path: str) -> tuple[str, str]:
    """Split a requirement from the hashes that follow it."""
    words, *options = re.split(r"\s+--hash(?:\s*=\s*|\s+)", line)
    return words.strip(), _hashes(tuple(one.strip() for one in options), path)


def _hashes(hashes: tuple[str, ...], path: str) -> str:
    for one in hashes:
        if not _HASH.fullmatch(one):
            _refuse(one, path)
    return "".join(f" --hash={one}" for one in sorted(set(hashes)))


def _by_name(text: str, path: str) -> str:
    return _plain(str(_requirement(text, path)), path)


def _requirement(text: str, path: str) -> Requirement:
    try:
        found = Requirement(text)
    except InvalidRequirement:
        _refuse(text, path)
    if found.url is not None:
        _refuse(text, path)
    return found


def _plain(text: str, path: str) -> str:
    if not _PLAIN.fullmatch(text):
        _refuse(text, path)
    return text


def _is_path(line: str) -> bool:
    return line.startswith((".", "/", "file:")) or (line.endswith(_ARCHIVES) and "@" not in line)


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name, {})
    return found if isinstance(found, dict) else {}


def _texts(texts: Any, path: str) -> list[str]:
    if texts is None:
        return []
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise BadInput(f"{path}: dependencies are not a list of texts")
    return texts


def _refuse(what: str, path: str) -> NoReturn:
    message = f"{path}: {what[:120]!r} is not supported where jobs run as other users"
    raise BadInput(message, hint=_HINT)
