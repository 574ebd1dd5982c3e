"""The folder of a comparison's reports: from the first moment it says how the last comparison stands.

A report "did not finish" is there while it runs, so that a killed one leaves no report of an earlier pass. One command
at a time writes to a folder.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Self

from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.jsontext import loads
from stoker.crossval.parity_report import RECEIPT, VERDICT, accept_forms, error_report, write_forms
from stoker.crossval.report_formats import CheckReport, ReportedCheck
from stoker.host.durable import read_regular, translated, write_file
from stoker.host.locks import FileLock

_LOCK = ".crossval.lock"
_LARGEST_BYTES = 1 << 30


class ReportFolder:
    """The reports of one comparison. Use it in a `with`; it raises `LockHeld` if another command writes there."""

    def __init__(self, folder: str, title: str, *, clock: Clock, made_at: str) -> None:
        self.folder = folder
        self._title = title
        self._clock = clock
        self._made_at = made_at
        self.has_verdict = False
        """Whether the reports are those of a comparison that came to an end."""
        self._lock = FileLock(os.path.join(folder, _LOCK), "writes reports", wait_s=0.0, clock=clock, removes_file=True)

    def __enter__(self) -> Self:
        with translated(self.folder):
            os.makedirs(self.folder, exist_ok=True)
        try:
            self._lock.acquire()
        except StokerError as error:
            error.add_hint("another comparison writes there; give this one a name: --name NAME")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def begin(self) -> None:
        """Replace the reports of an earlier comparison."""
        self.fail({"error": "unfinished", "message": "the comparison did not finish"})

    def fail(self, error: dict[str, object]) -> None:
        """Write reports of what went wrong; `error` is what `StokerError.to_dict` returns."""
        self.write(error_report(error, self._title, made_at=self._made_at))
        self.has_verdict = False

    def write(self, report: CheckReport) -> None:
        """Write reports without a verdict of models."""
        for name in (VERDICT, RECEIPT):
            with translated(self.folder), suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        write_forms(report, self.folder)
        self.has_verdict = True

    def accept(self, note: str) -> None:
        """Show what failed as skipped, with the note of an expected failure. Verdict and receipt stay as they are."""
        raw = loads(read_regular(os.path.join(self.folder, "report.json"), _LARGEST_BYTES))
        checks = (
            ReportedCheck(**{**one, "rows": tuple(one["rows"])})
            if one["outcome"] in ("passed", "skipped")
            else ReportedCheck(
                name=one["name"], outcome="skipped", reason=f"{note}; {one['reason']}", rows=tuple(one["rows"])
            )
            for one in raw["checks"]
        )
        kept = {name: raw[name] for name in ("title", "about", "made_at", "seconds")}
        report = CheckReport(
            kind="crossval",
            outcome="skipped",
            reason=f"{note}; {raw['reason']}",
            checks=tuple(checks),
            details=raw.get("details", {}),
            **kept,
        )
        accept_forms(report, note, self.folder)

    def take(self, folder: str) -> None:
        """Copy the reports of a verdict from a folder."""
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                write_file(os.path.join(self.folder, name), read_regular(os.path.realpath(path), _LARGEST_BYTES))
        self.has_verdict = True
