"""The C++ reference: llama.cpp from the package index, in an environment of its own, checked by running it.

A wheel of `xllamacpp` holds the whole library; `llama-cpp-python==VERSION` is built from source. Its environment is one
of `store.environment_cache`, so it is listed, pruned and locked like any other; `reference.json` beside it records
version, flags and digest of the library. A reference is kept only if it has computed a model with known answers.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import digest_value
from stoker.core.errors import (
    MissingExtra,
    NetworkFailed,
    NoSpace,
    NotOnServer,
    ReferenceNotBuilt,
    StokerError,
    Usage,
)
from stoker.core.frozen import fields_of, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import one_line
from stoker.crossval.plugin_process import Plugin, PluginTimeouts
from stoker.crossval.reference_check import check_reference, write_check_model
from stoker.crossval.runtimes import RuntimeChoice, RuntimePlaces, plugin_command
from stoker.host.command_runner import ProbeOutput, SubprocessRunner
from stoker.host.durable import read_regular, translated, write_file
from stoker.host.identity import ProcessIdentity
from stoker.host.install import diagnose, find_uv, packages_in, uv_environment, without_secrets
from stoker.host.locks import FileLock
from stoker.host.resources import folder_bytes
from stoker.store.environment_cache import EnvironmentCache, EnvironmentReady

DEFAULT_TAG = "2026.10.11549"
"""The version that this version of Stoker was tested with."""
WHEEL, SOURCE = "xllamacpp", "llama-cpp-python"

Say = Callable[[str], None]
"""Receives what is done next, for people."""

_FORMAT = 1
_TAG = re.compile(rf"(?:({WHEEL}|{SOURCE})==)?([0-9][A-Za-z0-9.+!]*)")
_INSTALL_S = 3600.0
_MOST_BYTES = 4 << 20
_LARGEST_RECORD = 1 << 20
_LOCK_WAIT_S = 10.0
_SHOWN_LINES = 20
_NETWORK = re.compile(
    r"dns error|error sending request|[Cc]onnection (?:refused|reset|closed|broken)|tcp connect|timed? ?out|TLS|"
    r"certificate|Failed to fetch|Failed to download|[Nn]etwork (?:connectivity )?(?:is|was) disabled|"
    r"Could not connect|Max retries|not found in the cache|HTTP status|\b(?:401|403|429|50[0-4]) "
)
_UNKNOWN = re.compile(
    r"No solution found|No matching distribution|Could not find a version|was not found in|no wheels?"
)
_FULL = re.compile(r"No space left|Disk quota")


@frozen
class InstalledReference:
    """A llama.cpp that is installed and has been checked."""

    distribution: str
    version: str
    interpreter: str
    """Of its environment."""
    python: str
    library: str
    """Path of its library."""
    library_sha256: str
    flags: str
    """What it was built with and uses here, in llama.cpp's own words."""
    key: str
    """Name of its environment."""
    fetched_s: float
    """When, in seconds since 1970."""
    seconds: float
    """How long that took."""
    size_bytes: int

    @property
    def tag(self) -> str:
        """The word of `--tag` that fetches it."""
        return self.version if self.distribution == WHEEL else f"{self.distribution}=={self.version}"


@frozen
class ReferencePlaces:
    """What a fetch works with."""

    shelf: EnvironmentCache
    environment: Mapping[str, str]
    own_prefix: str
    base_python: str
    """The interpreter that its environment is made of."""
    clock: Clock


@frozen
class FetchedReference:
    """The result of a fetch."""

    reference: InstalledReference
    is_new: bool
    """False: it was there, and was only checked."""
    removed: tuple[str, ...] = ()
    """Tags of references that were deleted before."""


def list_references(shelf: EnvironmentCache) -> tuple[InstalledReference, ...]:
    """Return the references that are installed, the one fetched last first."""
    found = filter(None, (_read(shelf, one.key) for one in shelf.all_kept()))
    return tuple(sorted(found, key=lambda one: -one.fetched_s))


def find_reference(shelf: EnvironmentCache, tag: str = "") -> InstalledReference | None:
    """Return the reference of a tag; without a tag the one that was fetched last."""
    wanted = _read_tag(tag) if tag else None
    known = (one for one in list_references(shelf) if os.access(one.interpreter, os.X_OK))
    return next((one for one in known if wanted in (None, (one.distribution, one.version))), None)


def runtime_places(envs: str, *, environment: Mapping[str, str], folder: str, clock: Clock) -> RuntimePlaces:
    """Return where runtimes are looked for: `folder`, and the newest reference below `envs` (empty: not known)."""
    found = find_reference(EnvironmentCache(envs, clock=clock)) if envs else None
    return RuntimePlaces(
        environment=environment, folder=folder, reference=found.interpreter if found is not None else ""
    )


@contextmanager
def use_reference(shelf: EnvironmentCache, tag: str = "", *, owner: ProcessIdentity) -> Iterator[InstalledReference]:
    """Return an installed reference for a block: while `owner` lives and is in it, no prune deletes it.

    Raises `MissingExtra` if there is none.
    """
    found = require_reference(shelf, tag)
    name = f"crossval-{owner.pid}-{secrets.token_hex(4)}"
    shelf.mark(found.key, owner, name)
    try:
        yield found
    finally:
        shelf.unmark(found.key, name)


def require_reference(shelf: EnvironmentCache, tag: str = "") -> InstalledReference:
    """Return an installed reference. Raises `MissingExtra` if there is none."""
    found = find_reference(shelf, tag)
    if found is None:
        which = f"the reference {tag}" if tag else "the C++ reference"
        raise MissingExtra(f"{which} is not installed", hint=f"stoker reference fetch{f' --tag {tag}' if tag else ''}")
    return found


def fetch_reference(
    places: ReferencePlaces, tag: str = "", *, forces: bool = False, cleans: bool = False, say: Say
) -> FetchedReference:
    """Return the reference of a tag, installed if it is missing (or if `forces`), and checked by running it.

    With `cleans` all references are deleted first. Raises `Usage`, `NetworkFailed`, `NotOnServer`, `NoSpace`,
    `ReferenceNotBuilt`, `NotVerified`, or what a plug-in raises; a reference that fails is not kept.
    """
    distribution, version = _read_tag(tag or DEFAULT_TAG)
    shelf, clock = places.shelf, places.clock
    removed = tuple(_clean(places, say)) if cleans else ()
    digest = digest_value("reference", [distribution, version])
    key = str(digest_value("environment", [digest, platform.machine(), platform.system(), places.base_python]))
    shelf.make_locks()
    with FileLock(shelf.lock_path(key), "fetches the reference", wait_s=_LOCK_WAIT_S, clock=clock):
        known = _read(shelf, key)
        is_there = known is not None and shelf.find(digest, key) is not None
        if known is not None and is_there and not forces:
            say(f"checking llama.cpp {known.tag}")
            try:
                _check(places, known.interpreter)
            except StokerError as error:
                error.add_hint(f"install it again: stoker reference fetch --tag {known.tag} --force")
                raise
            shelf.use(key)
            return FetchedReference(reference=known, is_new=False, removed=removed)
        began_s = clock.monotonic_s()
        _install(places, key, f"{distribution}=={version}", say, again=is_there)
        made = _checked(places, key, f"{distribution}=={version}", say, began_s)
        write_file(_record_path(shelf, key), dumps({"v": _FORMAT, **fields_of(made)}, indent=1).encode())
        _keep(shelf, made, digest)
    return FetchedReference(reference=made, is_new=True, removed=removed)


def _install(places: ReferencePlaces, key: str, requirement: str, say: Say, *, again: bool) -> None:
    """Make its environment; one that works already stays if the installer fails."""
    shelf = places.shelf
    if not again:
        shelf.remove(key)
        shelf.make(key)
    try:
        for what, argv in _commands(places, shelf.venv(key), requirement, again=again):
            say(what)
            _run(places, argv, requirement)
    except BaseException:
        if not again:
            shelf.remove(key)
        raise


def _checked(places: ReferencePlaces, key: str, requirement: str, say: Say, began_s: float) -> InstalledReference:
    """Return the reference of an environment that was made; one that fails its check is deleted."""
    venv = places.shelf.venv(key)
    python = os.path.join(venv, "bin", "python")
    distribution, _, version = requirement.partition("==")
    try:
        found = packages_in(venv).get(distribution, "")
        if found != version:
            raise ReferenceNotBuilt(f"the environment has {distribution} {found or 'not at all'}, not {version}")
        say(f"checking {requirement}")
        build = _check(places, python)
    except StokerError:
        places.shelf.remove(key)
        raise
    library = build.get("library", "")
    return InstalledReference(
        distribution=distribution,
        version=version,
        interpreter=python,
        python=_python_version(venv),
        library=library,
        library_sha256=_digest_of(library),
        flags=build.get("flags", ""),
        key=key,
        fetched_s=places.clock.wall_s(),
        seconds=round(places.clock.monotonic_s() - began_s, 3),
        size_bytes=folder_bytes(venv),
    )


def _commands(
    places: ReferencePlaces, venv: str, requirement: str, *, again: bool
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the commands that make its environment, each with what it does."""
    is_wheel = requirement.startswith(f"{WHEEL}==")
    python = os.path.join(venv, "bin", "python")
    uv = find_uv(places.own_prefix, places.environment)
    making = f"making an environment of {places.base_python}"
    installing = f"installing {requirement}" if is_wheel else f"building {requirement}: this takes minutes"
    if uv:
        if not again:
            yield making, (uv, "venv", "--no-project", "--python", places.base_python, venv)
        # Copies: damage here must not reach the cache from which it is installed again.
        words = ["--link-mode=copy", *(["--no-build"] if is_wheel else []), *(["--reinstall"] if again else [])]
        yield installing, (uv, "pip", "install", *words, "--python", python, requirement)
        return
    if not again:
        yield making, (places.base_python, "-m", "venv", venv)
    words = [*(["--only-binary=:all:"] if is_wheel else []), *(["--force-reinstall"] if again else [])]
    quiet = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")
    yield installing, (python, "-m", "pip", "install", *quiet, *words, requirement)


def _run(places: ReferencePlaces, argv: Sequence[str], requirement: str) -> None:
    """Run one command of the installation. Raises what its failure means."""
    env = uv_environment(places.environment, PYTHONDONTWRITEBYTECODE="1")
    reply = SubprocessRunner(env, most_bytes=_MOST_BYTES).ask(argv, limit_s=_INSTALL_S)
    if not isinstance(reply, ProbeOutput):
        raise ReferenceNotBuilt(f"{requirement} can't be installed: {reply.why}")
    if reply.exit_code == 0:
        return
    lines = [without_secrets(line) for line in f"{reply.out}\n{reply.err}".splitlines() if line.strip()]
    text = " ".join(lines)
    why = diagnose(lines, reply.exit_code, where=platform.machine()).why
    data: dict[str, Any] = {"requirement": requirement, "output": lines[-_SHOWN_LINES:]}
    if _FULL.search(text):
        raise NoSpace(f"{requirement}: {why}", **data)
    if _NETWORK.search(text):
        raise NetworkFailed(f"{requirement}: {why}", hint="is a package index within reach?", **data)
    if _UNKNOWN.search(text):
        hint = f"the version that Stoker was tested with: --tag {DEFAULT_TAG}"
        raise NotOnServer(
            f"{requirement} is not on the package index, or not for this machine: {why}", hint=hint, **data
        )
    raise ReferenceNotBuilt(f"{requirement} can't be installed: {why}", **data)


def _check(places: ReferencePlaces, python: str) -> Mapping[str, str]:
    """Run the reference; return its library and flags as it reports them. Raises `NotVerified`."""
    at = RuntimePlaces(
        environment=places.environment,
        folder="/",
        own_prefix=places.own_prefix,
        own_python=places.base_python,
        reference=python,
    )
    command = plugin_command(RuntimeChoice(name="llama.cpp"), at)
    timeouts = PluginTimeouts(load_s=120.0, line_s=60.0)
    with (
        tempfile.TemporaryDirectory(prefix="stoker-reference-") as folder,
        Plugin(command, timeouts=timeouts, clock=places.clock) as plugin,
    ):
        path = os.path.join(folder, "check.gguf")
        write_check_model(path)
        return check_reference(plugin, path).build


def _clean(places: ReferencePlaces, say: Say) -> Iterator[str]:
    """Delete all references that no process uses; return their tags."""
    for one in list_references(places.shelf):
        with FileLock(places.shelf.lock_path(one.key), "deletes a reference", wait_s=_LOCK_WAIT_S, clock=places.clock):
            if places.shelf.is_used(one.key):
                say(f"note: {one.tag} is in use and stays")
            elif places.shelf.remove(one.key):
                yield one.tag


def _keep(shelf: EnvironmentCache, made: InstalledReference, digest: str) -> None:
    shelf.keep(
        EnvironmentReady(
            digest=digest,
            key=made.key,
            interpreter=made.interpreter,
            version=made.python,
            packages=packages_in(shelf.venv(made.key)),
            seconds=made.seconds,
            size_bytes=made.size_bytes,
        )
    )


def _read(shelf: EnvironmentCache, key: str) -> InstalledReference | None:
    try:
        fields = loads(read_regular(_record_path(shelf, key), _LARGEST_RECORD))
        if not isinstance(fields, dict) or fields.pop("v", None) != _FORMAT:
            return None
        return InstalledReference(**fields)
    except (OSError, ValueError, TypeError, StokerError):
        return None


def _record_path(shelf: EnvironmentCache, key: str) -> str:
    return os.path.join(shelf.place(key), "reference.json")


def _read_tag(tag: str) -> tuple[str, str]:
    found = _TAG.fullmatch(tag)
    if found is None:
        hint = f"a version of {WHEEL}, as {DEFAULT_TAG}, or {SOURCE}==VERSION to build it from source"
        raise Usage(f"--tag {one_line(tag, 80)!r} is no version", hint=hint)
    return found[1] or WHEEL, found[2]


def _digest_of(path: str) -> str:
    with translated(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _python_version(venv: str) -> str:
    """Return the version of an environment's Python, from its configuration."""
    text = read_regular(os.path.join(venv, "pyvenv.cfg"), _LARGEST_RECORD).decode("utf-8", "replace")
    lines = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return lines.get("version_info", "") or lines.get("version", "")
