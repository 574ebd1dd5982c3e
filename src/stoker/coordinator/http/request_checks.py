"""Manifests and repeated jobs from clients, each checked in a child process of its own (`request_child`)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from io import BytesIO
from typing import Any

from stoker.coordinator.http.http_messages import LOG
from stoker.coordinator.http.request_child import IN_PARTS, TOO_MUCH
from stoker.coordinator.http.submission_body import read_submission
from stoker.core.errors import InternalError, TooLarge
from stoker.core.frozen import fields_of, frozen
from stoker.core.job import JobSpec
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import translated
from stoker.jobs.repeated_job import RepeatedJob, RepeatRequest
from stoker.jobs.sent_manifest import CheckedManifest, SentDiagnostic, SentEntry
from stoker.protocol.job_messages import Submission
from stoker.protocol.refusals import error_of

LIMIT_S = 30.0
_CHILD = "stoker.coordinator.http.request_child"
_LOGGED = 4000


@frozen
class SentManifest:
    """A manifest as the child has checked it."""

    checked: CheckedManifest
    submission: Submission | None = None
    """Of its jobs, if all of them can be submitted."""
    notes: tuple[str, ...] = ()
    more: int = 0
    """Number of entries that are not in `checked`."""


class RequestChecks:
    """Runs a child for each check. Thread-safe; every method blocks."""

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s

    def manifest(self, name: str, text: str, known_of: Callable[[Collection[str]], Collection[str]]) -> SentManifest:
        """Return what a manifest makes; `known_of` returns those of some names that other jobs have, for `after`."""
        answer, jobs = self._ask({"op": "manifest", "name": name, "text": text, "jobs": None})
        after: list[str] = answer["after"]
        known = known_of(after) if after else ()
        if len(known) < len(after):
            # Now their places are needed.
            answer, jobs = self._ask({"op": "manifest", "name": name, "text": text, "jobs": sorted(known)})
        entries = tuple(SentEntry(**one) for one in answer["entries"])
        diagnostics = tuple(SentDiagnostic(**one) for one in answer["diagnostics"])
        return SentManifest(
            checked=CheckedManifest(entries=entries, diagnostics=diagnostics, count=answer["count"]),
            submission=read_submission(BytesIO(jobs)) if jobs else None,
            notes=tuple(answer["notes"]),
            more=answer["more"],
        )

    def repeat(self, spec: JobSpec, request: RepeatRequest) -> RepeatedJob:
        """Return a job again with other values. Raises what `RepeatBuilder.repeat` raises."""
        answer, _ = self._ask({"op": "repeat", "spec": spec.to_json(), "request": fields_of(request)})
        return RepeatedJob(spec=JobSpec.from_json(answer["spec"]), notes=tuple(answer["notes"]))

    def _ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the child's answer, and the submission behind it; raise the child's error."""
        done = self.run_closed_in(["-m", _CHILD], dumps(question).encode())
        if done.returncode == TOO_MUCH or done.returncode < 0:
            raise TooLarge("the check took too much time or memory", hint=IN_PARTS)
        if done.returncode:
            LOG.error("a check of a request failed: %s", done.stderr.decode(errors="replace")[-_LOGGED:])
            hint = "the coordinator's log has the trace; please report it"
            raise InternalError(f"the check ended with exit code {done.returncode}", hint=hint)
        head, _, submission = done.stdout.partition(b"\n")
        answer: dict[str, Any] = loads(head)
        if "error" in answer:
            raise error_of(answer)
        return answer, submission

    def run_closed_in(self, words: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
        """Run Python with these words: without environment, in an empty folder, for a limited time."""
        command = [sys.executable, "-E", "-P", "-B", *words]
        with translated("request"), tempfile.TemporaryDirectory(prefix="stoker-check-") as folder:
            try:
                return subprocess.run(
                    command, input=data, capture_output=True, cwd=folder, env={}, timeout=self._limit_s, check=False
                )
            except subprocess.TimeoutExpired:
                raise TooLarge(f"the check took longer than {self._limit_s:g} s", hint=IN_PARTS) from None
