"""The child process in which manifests and repeated jobs from clients are checked (`request_checks`).

What a client sends is checked by the same code as on its own machine, which reads files there. Here it must not: the
child has no environment, an empty working folder, limits of time and memory, and refuses by an audit hook to open a
file that is not of the installed program, to write, to start processes, and to connect. The hook holds for Python code;
recipes are installed here and trusted, a manifest has no code. A text that takes too long or too much ends its child.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.device import Capacity
from stoker.core.errors import StokerError, TooLarge
from stoker.core.frozen import fields_of
from stoker.core.job import JobSpec
from stoker.core.jsontext import dumps, loads
from stoker.core.text import format_size
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.builder import JobBuilder
from stoker.jobs.repeated_job import RepeatBuilder, RepeatRequest
from stoker.jobs.requirements import PlanShapes
from stoker.jobs.sent_manifest import check_manifest_text
from stoker.protocol.codec import to_json
from stoker.protocol.job_messages import MOST_SUBMISSION_BYTES
from stoker.store.memo import Memo

MOST_MEMORY_BYTES = 2 << 30
"""Of address space, with the libraries of a cookbook."""
MOST_AFTER = 1000
"""Other jobs that the jobs of a manifest may wait for."""
TOO_MUCH = 3
"""The exit code if it took too much."""
IN_PARTS = "submit it in parts, or from its folder by `stoker submit`"
_MOST_CPU_S = 20
_NICENESS = 10
_MOST_ENTRIES = 1000
_MOST_NOTES = 100
_NOWHERE = "/stoker-has-no-folder"


def main() -> int:
    """Answer the question on standard input: a line, and behind it the submission that was made."""
    _limit()
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    question: dict[str, Any] = loads(sys.stdin.buffer.read())
    submission = b""
    try:
        _close_in()
        answer, submission = _ANSWERS[question["op"]](question)
        if len(submission) > MOST_SUBMISSION_BYTES:
            raise TooLarge(f"its jobs are more than {format_size(MOST_SUBMISSION_BYTES)}", hint=IN_PARTS)
        text = dumps(answer)
    except StokerError as error:
        text, submission = dumps(error.to_dict()), b""
    except (MemoryError, RecursionError):
        return TOO_MUCH
    out.write(text.encode() + b"\n" + submission)
    out.flush()
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
        if len(self.asked) > MOST_AFTER:
            raise TooLarge(f"its jobs wait for more than {MOST_AFTER:,} others", hint=IN_PARTS)
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)


def _manifest(question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    asked = _AnyName()
    known: Collection[str] = asked if question["jobs"] is None else question["jobs"]
    builder, code = _builder()
    made = check_manifest_text(question["name"], question["text"], builder=builder, code=code, known_jobs=known)
    submission = to_json(made.prepared.submission()) if made.prepared is not None else b""
    answer = {
        "entries": [fields_of(one) for one in made.entries[:_MOST_ENTRIES]],
        "more": max(0, len(made.entries) - _MOST_ENTRIES),
        "diagnostics": [fields_of(one) for one in made.diagnostics],
        "count": made.count,
        "after": list(asked),
        "notes": list(made.prepared.notes[:_MOST_NOTES]) if made.prepared is not None else [],
    }
    return answer, submission


def _repeat(question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    asked = question["request"]
    words = asked["words"]
    request = RepeatRequest(
        changes=tuple(asked["changes"]), words=None if words is None else tuple(words), name=asked["name"]
    )
    builder, code = _builder()
    made = RepeatBuilder(builder=builder, shapes=PlanShapes(builder, code)).repeat(
        JobSpec.from_json(question["spec"]), request
    )
    return {"spec": made.spec.to_json(), "notes": list(made.notes)}, b""


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
