"""One call of the command line, as a command sees it: what was asked, where to write, and the parts of the house."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from stoker.cli.flags import Flags
from stoker.cli.output import CliOutput
from stoker.core.errors import LocalFile

if TYPE_CHECKING:
    from stoker.cli.app_parts import AppParts
    from stoker.core.errors import StokerError
    from stoker.jobs.build_context import JobCompiler
    from stoker.jobs.job_folder import JobFolder


class Closeable(Protocol):
    """What has to be closed at the end."""

    def close(self) -> None: ...


class CommandContext:
    """Handed to the command that performs it."""

    def __init__(self, flags: Flags, out: CliOutput, build: Callable[[], AppParts]) -> None:
        self.flags = flags
        self.out = out
        self._build = build
        self._parts: AppParts | None = None
        self._opened: list[Closeable] = []
        self.incomplete: StokerError | None = None
        """Why the answer is incomplete. The command does what it can; then this is reported, with its exit code."""

    @property
    def parts(self) -> AppParts:
        """The parts, built when first asked for."""
        if self._parts is None:
            try:
                self._parts = self._build()
            except FileNotFoundError as error:
                raise LocalFile("the folder this was started in is gone", hint="cd to one that exists") from error
        return self._parts

    def state_folder(self) -> str:
        """Return where a crash may be written down, if that can be found out."""
        try:
            return self.parts.settings.state
        except Exception:  # noqa: BLE001 - it may be the very thing that is broken
            return ""

    def keep_open(self, opened: Closeable) -> None:
        """Close this when the command is over."""
        self._opened.append(opened)

    def close(self) -> None:
        """Let go of what was built."""
        for opened in self._opened:
            opened.close()
        if self._parts is not None:
            self._parts.close()

    def path(self, text: str) -> str:
        """Return the whole path of what a user wrote: below where the command was given, `~` being home."""
        return os.path.abspath(os.path.join(self.parts.settings.folder, os.path.expanduser(text)))

    def find_job(self, name: str) -> JobFolder:
        """Find a job by its name, `last`, or the beginning of an id."""
        from stoker.jobs.job_folder import find_job

        return find_job(self.parts.settings.runs, name)

    def sweeps_folder(self) -> str:
        """Return where it is written down which trials of programs have finished."""
        return os.path.join(self.parts.settings.state, "sweeps")

    def desk(self) -> JobCompiler:
        """Return what takes orders."""
        return self.parts.desk()
