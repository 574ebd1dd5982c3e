"""What a job says of its interpreter, as choices that travel: each file found, with everything that belongs to it.

    env = "uv.lock"                         rebuilt on each machine
    env = "uv.lock[cuda]"                   with the project's optional dependencies of that name
    env = { linux-aarch64 = "requirements-jetson.txt", default = "uv.lock" }
    python = "3.11"                         which Python it is made of; without env, the machine's own of that version
    python = { linux-aarch64 = "/usr/bin/python3" }      the machine's own interpreter there, nothing is made

The files are read in the project, and have to go to the machine with its code (`JobEnvironmentChoices.files`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.config.fields import ANY, is_version
from stoker.core.errors import BadInput, Diagnostic
from stoker.core.frozen import changed, frozen
from stoker.core.job import EnvironmentChoice
from stoker.core.machine import Platform, python_of
from stoker.host.durable import read_regular
from stoker.jobs.pack.environment_files import LOCK, EnvironmentSources, gather, named
from stoker.protocol.environment_messages import PYTHON, choose, own_digest, platform_held
from stoker.protocol.lease_messages import MachineInventory

_LARGEST_BYTES = 64 << 20
_LONGEST_WHY = 500


@frozen
class JobEnvironmentChoices:
    """All choices of a job."""

    choices: tuple[EnvironmentChoice, ...] = ()
    files: tuple[str, ...] = ()
    """Files that the code tree must have, below the project."""
    faults: tuple[Diagnostic, ...] = ()
    """Faults, at `env`, `env.linux-aarch64`, `python` …"""


class EnvironmentChoices:
    """Makes the choices of the jobs of one project; equal settings of ten thousand jobs are evaluated once."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._known: dict[tuple[tuple[tuple[str, str], ...], ...], JobEnvironmentChoices] = {}
        self._gathered: dict[tuple[str, str], EnvironmentSources] = {}

    def of(self, env: Mapping[str, str], python: Mapping[str, str]) -> JobEnvironmentChoices:
        """Return the choices for a job's settings, by platform (`config.fields`)."""
        key = (tuple(env.items()), tuple(python.items()))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(env, python)
        return found

    def _made(self, env: Mapping[str, str], python: Mapping[str, str]) -> JobEnvironmentChoices:
        choices: list[EnvironmentChoice] = []
        files: dict[str, None] = {}
        faults: list[Diagnostic] = []
        for platform in sorted({*env, *python}, key=lambda word: (word == ANY, -word.count("-"), word)):
            key = "env" if platform in env else PYTHON
            try:
                choice, needed = self._one(platform, env, python)
            except BadInput as error:
                where = f"{key}.{platform}" if platform else key
                faults.append(Diagnostic(where, error.message, error.hint))
                continue
            choices.append(choice)
            files.update(dict.fromkeys(needed))
        return JobEnvironmentChoices(choices=tuple(choices), files=tuple(files), faults=tuple(faults))

    def _one(
        self, platform: str, env: Mapping[str, str], python: Mapping[str, str]
    ) -> tuple[EnvironmentChoice, tuple[str, ...]]:
        said = python.get(platform, "")
        version = said or python.get(ANY, "")
        version = version if is_version(version) else python_of(platform)
        if said and not is_version(said):
            if platform in env:
                message = f"{said} is an interpreter of the machine: {env[platform]} can't be installed into it"
                raise BadInput(
                    message, hint="use env, or python = PATH; env can be combined with a version: python = 3.11"
                )
            return _own(platform, path=said), ()
        text = env.get(platform, env.get(ANY, ""))
        if not text:
            return _own(platform, version=version), ()
        sources = self._sources(text, version)
        choice = EnvironmentChoice(
            platform=platform,
            kind=sources.kind,
            path=sources.path,
            digest=sources.digest,
            python=sources.python,
            extras=sources.extras,
        )
        return choice, sources.files

    def _sources(self, text: str, version: str) -> EnvironmentSources:
        known = self._gathered.get((text, version))
        if known is None:
            path, extras = named(text)
            if path.startswith(("/", "~")) or ".." in path.split("/"):
                raise BadInput(f"{path} is outside of the project", hint="env names a file below the project's folder")
            known = self._gathered[text, version] = gather(self._project, path, python=version, extras=extras)
        return known


def refused_by(
    choices: Iterable[EnvironmentChoice], project: str, machines: Iterable[MachineInventory]
) -> tuple[EnvironmentChoice, ...]:
    """Return the choices with the platforms on which their locks can't be installed, before any machine tries.

    A machine that has built the environment, or failed to, has priority over the lock.
    """
    choices = tuple(choices)
    refused: dict[int, dict[str, str]] = {}
    for held in machines:
        platform = platform_held(held)
        choice = choose(choices, platform)
        if choice is None or choice.kind != LOCK or not platform.system:
            continue
        at = choices.index(choice)
        if (
            choice.digest in held.environments
            or choice.digest in held.impossible
            or platform.text in refused.get(at, {})
        ):
            continue
        why = _why_not(choice, project, platform)
        if why:
            refused.setdefault(at, {})[platform.text] = why[:_LONGEST_WHY]
    return tuple(changed(one, refused=refused[at]) if at in refused else one for at, one in enumerate(choices))


def _why_not(choice: EnvironmentChoice, project: str, platform: Platform) -> str:
    # Imported here: only a submission of a lock to machines that don't know it needs the library.
    from stoker.jobs.pack.lock_file import read_lock  # noqa: PLC0415
    from stoker.jobs.pack.wheels import why_impossible  # noqa: PLC0415

    try:
        lock = read_lock(read_regular(f"{project}/{choice.path}", _LARGEST_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, BadInput):
        return ""
    return "; ".join(why_impossible(lock, platform, wish=choice.python, extras=choice.extras)[:3])


def _own(platform: str, *, path: str = "", version: str = "") -> EnvironmentChoice:
    return EnvironmentChoice(
        platform=platform, kind=PYTHON, path=path, digest=own_digest(path, version), python=version
    )
