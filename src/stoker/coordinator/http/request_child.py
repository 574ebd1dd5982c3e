"""Manifests and repeated jobs from clients, checked in a child process of its own.

What a client sends is checked by the same code as on its own machine, which reads files there. Here it must not: the
child has no environment, an empty working folder, limits of time and memory, and refuses by an audit hook to open a
file that is not of the installed program, to write, to start processes, and to connect. The hook holds for Python code;
recipes are installed here and trusted, a manifest has no code. A text that takes too long or too much ends its child.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.device import Capacity
from stoker.core.errors import Refused, StokerError, TooLarge, Unavailable
from stoker.core.frozen import fields_of, frozen
from stoker.core.job import JobSpec
from stoker.core.jsontext import dumps, loads
from stoker.core.text import format_size
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import CodeIdentity
from stoker.host.durable import translated
from stoker.jobs.builder import JobBuilder
from stoker.jobs.repeated_job import RepeatBuilder, RepeatedJob, RepeatRequest
from stoker.jobs.requirements import PlanShapes
from stoker.jobs.sent_manifest import CheckedManifest, SentDiagnostic, SentEntry, check_manifest_text
from stoker.protocol.codec import from_json, to_json
from stoker.protocol.job_messages import MOST_SUBMISSION_BYTES, Submission
from stoker.protocol.refusals import error_of
from stoker.store.memo import Memo

LIMIT_S = 30.0
MOST_MEMORY_BYTES = 2 << 30
"""Of address space, with the libraries of a cookbook."""
MOST_ANSWER_BYTES = 4 * MOST_SUBMISSION_BYTES
_MOST_CPU_S = 20
_NICENESS = 10
_MOST_ENTRIES = 1000
_NOWHERE = "/stoker-has-no-folder"
_RETRY_S = 5


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
    """Runs children, one at a time. Thread-safe; every method blocks."""

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._turn = threading.Lock()

    def manifest(self, name: str, text: str, is_known: Callable[[str], bool]) -> SentManifest:
        """Return what a manifest makes; `is_known` says which other jobs there are, for `after`."""
        answer = self._ask({"op": "manifest", "name": name, "text": text, "jobs": None})
        after: list[str] = answer["after"]
        known = [job for job in after if is_known(job)]
        if len(known) < len(after):
            # Now their places are needed.
            answer = self._ask({"op": "manifest", "name": name, "text": text, "jobs": known})
        entries = tuple(SentEntry(**one) for one in answer["entries"])
        diagnostics = tuple(SentDiagnostic(**one) for one in answer["diagnostics"])
        text = answer["submission"]
        return SentManifest(
            checked=CheckedManifest(entries=entries, diagnostics=diagnostics, count=answer["count"]),
            submission=from_json(Submission, text.encode()) if text else None,
            notes=tuple(answer["notes"]),
            more=answer["more"],
        )

    def repeat(self, spec: JobSpec, request: RepeatRequest) -> RepeatedJob:
        """Return a job again with other values. Raises what `RepeatBuilder.repeat` raises."""
        answer = self._ask({"op": "repeat", "spec": spec.to_json(), "request": fields_of(request)})
        return RepeatedJob(spec=JobSpec.from_json(answer["spec"]), notes=tuple(answer["notes"]))

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        data = dumps(question).encode()
        if not self._turn.acquire(timeout=self._limit_s):
            raise Unavailable("other requests are checked", hint="send it again in a moment", retry_after_s=_RETRY_S)
        try:
            answer = self._answer(data)
        finally:
            self._turn.release()
        if "error" in answer:
            raise error_of(answer)
        return answer

    def _answer(self, data: bytes) -> dict[str, Any]:
        done = self.run_closed_in(["-m", __name__], data)
        if done.returncode == 0:
            found: dict[str, Any] = loads(done.stdout)
            return found
        if done.returncode == _TOO_MUCH or done.returncode < 0:
            raise TooLarge("the check took too much time or memory", hint=_IN_PARTS)
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise Refused(f"the check ended with exit code {done.returncode}", hint=last)

    def run_closed_in(self, words: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
        """Run Python with these words: without environment, in an empty folder, for a limited time."""
        command = [sys.executable, "-E", "-P", "-B", *words]
        with translated("request"), tempfile.TemporaryDirectory(prefix="stoker-check-") as folder:
            try:
                return subprocess.run(
                    command, input=data, capture_output=True, cwd=folder, env={}, timeout=self._limit_s, check=False
                )
            except subprocess.TimeoutExpired:
                raise TooLarge(f"the check took longer than {self._limit_s:g} s", hint=_IN_PARTS) from None


_IN_PARTS = "submit it in parts, or from its folder by `stoker submit`"
_TOO_MUCH = 3


# In the child.


def main() -> int:
    """Answer the question on standard input."""
    _limit()
    question: dict[str, Any] = loads(sys.stdin.buffer.read())
    try:
        _close_in()
        answer = _ANSWERS[question["op"]](question)
        text = dumps(answer)
        if len(text) > MOST_ANSWER_BYTES:
            raise TooLarge(f"its jobs are more than {format_size(MOST_ANSWER_BYTES)}", hint=_IN_PARTS)
    except StokerError as error:
        text = dumps(error.to_dict())
    except (MemoryError, RecursionError):
        return _TOO_MUCH
    sys.stdout.buffer.write(text.encode())
    return 0


def _limit() -> None:
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):
        # Not every system can.
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


class _AnyName(Collection[str]):
    """Jobs that a manifest may name: all of them, noting which it does."""

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        self.asked[str(name)] = None
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)


def _manifest(question: dict[str, Any]) -> dict[str, Any]:
    asked = _AnyName()
    known: Collection[str] = asked if question["jobs"] is None else question["jobs"]
    builder, code = _builder()
    made = check_manifest_text(question["name"], question["text"], builder=builder, code=code, known_jobs=known)
    submission = ""
    if made.prepared is not None:
        submission = to_json(made.prepared.submission()).decode()
        if len(submission) > MOST_SUBMISSION_BYTES:
            raise TooLarge(f"its jobs are more than {format_size(MOST_SUBMISSION_BYTES)}", hint=_IN_PARTS)
    return {
        "entries": [fields_of(one) for one in made.entries[:_MOST_ENTRIES]],
        "more": max(0, len(made.entries) - _MOST_ENTRIES),
        "diagnostics": [fields_of(one) for one in made.diagnostics],
        "count": made.count,
        "after": list(asked),
        "submission": submission,
        "notes": list(made.prepared.notes) if made.prepared is not None else [],
    }


def _repeat(question: dict[str, Any]) -> dict[str, Any]:
    asked = question["request"]
    words = asked["words"]
    request = RepeatRequest(
        changes=tuple(asked["changes"]), words=None if words is None else tuple(words), name=asked["name"]
    )
    builder, code = _builder()
    made = RepeatBuilder(builder=builder, shapes=PlanShapes(builder, code)).repeat(
        JobSpec.from_json(question["spec"]), request
    )
    return {"spec": made.spec.to_json(), "notes": list(made.notes)}


_ANSWERS = {"manifest": _manifest, "repeat": _repeat}


def _builder() -> tuple[JobBuilder, CodeIdentity]:
    """Return a builder that reads nothing and knows nothing of this machine."""
    clock = SystemClock()
    builder = JobBuilder(
        catalogue=Catalogue(""),
        memo=Memo(":memory:", set_aside=lambda _path, _why: None),
        clock=clock,
        folder=_NOWHERE,
        version="",
        entropy=0,
        environment={},
        capacity=Capacity(cpu=1),
        readable=(),
    )
    return builder, CodeIdentity("", clock=clock)


_REFUSED = frozenset(
    {
        *(f"os.{one}" for one in ("exec", "fork", "forkpty", "posix_spawn", "spawn", "system")),
        *(
            f"os.{one}"
            for one in ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate")
        ),
        *(f"socket.{one}" for one in ("bind", "connect", "getaddrinfo", "gethostbyname", "sendto")),
        "subprocess.Popen",
    }
)
_LISTS = frozenset({"os.listdir", "os.scandir"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _close_in() -> None:
    """Let this process read the installed program alone from now on. It can't be undone."""
    kept = {*sys.path, os.path.dirname(os.__file__)} - {"", "/"}
    forms = (form for path in kept for form in (os.path.abspath(path), os.path.realpath(path)))
    roots = tuple({os.path.join(form, "") for form in forms})

    def is_ours(path: Any) -> bool:
        if isinstance(path, int):
            # Opened before.
            return True
        whole = os.path.normpath(os.fsdecode(path))
        return os.path.isabs(whole) and f"{whole}/".startswith(roots)

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            is_refused = bool(isinstance(flags, int) and flags & _WRITES) or not is_ours(path)
        elif event in _LISTS:
            is_refused = args[0] is None or not is_ours(args[0])
        else:
            is_refused = event in _REFUSED
        if is_refused:
            message = f"{event} is refused while a request is checked"
            raise PermissionError(message)

    sys.addaudithook(hear)


if __name__ == "__main__":
    sys.exit(main())
