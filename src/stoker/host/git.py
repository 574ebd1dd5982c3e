"""Read-only queries of a git repository, run in parallel, each by a process of its own.

Nothing is written to the repository, not even what git would refresh on the way, so a read-only disk is enough. No
command from the repository's settings is run, and nothing is fetched: it may come from an archive.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Thread

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.host.durable import translate

LIMIT_S = 60.0
NOT_THERE = 127
"""The exit code of a missing program, as in shells."""
_LONGEST_ERROR = 400
_RUNS_NOTHING = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
FILTERS = ("config", "--null", "--show-scope", "--name-only", "--get-regexp", r"^filter\.")
"""Lists the filters that a repository would apply to files before they are compared."""
_OWN_SCOPES = frozenset({b"local", b"worktree"})


@frozen
class GitResult:
    """What git returned."""

    out: bytes
    exit_code: int
    err: str = ""
    """Its last error message, in one line."""

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0

    def lines(self) -> list[str]:
        """Return its lines as text."""
        return os.fsdecode(self.out).splitlines()


def ask_git(
    folder: str, *questions: Sequence[str], environment: Mapping[str, str], limit_s: float = LIMIT_S
) -> tuple[GitResult, ...]:
    """Query the repository of a folder, in parallel; results in order. Raises nothing for git."""
    # We read its messages, and it can't prompt for a password.
    env = {**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    # Missing objects stay missing: a repository may name a command that fetches them.
    env.update(GIT_ALLOW_PROTOCOL="none", GIT_NO_LAZY_FETCH="1")
    with ExitStack() as started:
        children: list[subprocess.Popen[bytes] | GitResult] = []
        for words in questions:
            try:
                child = subprocess.Popen(
                    ["git", "-C", folder, *_RUNS_NOTHING, *words],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # Its children end with it.
                    start_new_session=True,
                )
            except OSError as error:
                why = "git is not installed" if isinstance(error, FileNotFoundError) else str(translate(error, "git"))
                children.append(GitResult(out=b"", exit_code=NOT_THERE, err=why))
                continue
            started.enter_context(child)
            children.append(child)
        return _answers(children, limit_s)


def without_filters(listed: GitResult) -> tuple[str, ...]:
    """Return the arguments that turn off the filters which `FILTERS` found in the repository; the user's own stay.

    Raises `BadInput` for a filter with an unusual name.
    """
    parts = listed.out.split(b"\0")
    names = dict.fromkeys(
        os.fsdecode(key).rpartition(".")[0]
        for scope, key in zip(parts[::2], parts[1::2], strict=False)
        if scope in _OWN_SCOPES
    )
    odd = next((name for name in names if "=" in name), "")
    if odd:
        raise BadInput(
            f"the repository names a filter {odd!r} that can't be turned off", hint="--in-place, or rename it"
        )
    # An empty command means none; a required filter would fail then.
    settings = [f"{name}.{part}" for name in names for part in ("clean=", "smudge=", "process=", "required=false")]
    return tuple(word for setting in settings for word in ("-c", setting))


def _answers(children: list[subprocess.Popen[bytes] | GitResult], limit_s: float) -> tuple[GitResult, ...]:
    found: dict[int, GitResult] = {at: one for at, one in enumerate(children) if isinstance(one, GitResult)}

    def read(at: int, child: subprocess.Popen[bytes]) -> None:
        found[at] = _answer(child, limit_s)

    # The first is read here, the others in parallel: a full pipe must not block any of them.
    running = [(at, one) for at, one in enumerate(children) if not isinstance(one, GitResult)]
    threads = [Thread(target=read, args=one, daemon=True) for one in running[1:]]
    for thread in threads:
        thread.start()
    for one in running[:1]:
        read(*one)
    for thread in threads:
        thread.join()
    return tuple(found[at] for at in range(len(children)))


def _answer(child: subprocess.Popen[bytes], limit_s: float) -> GitResult:
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return GitResult(out=b"", exit_code=-1, err=f"git timed out after {limit_s:g} s")
    message = err.decode(errors="replace").strip()
    return GitResult(out=out, exit_code=child.returncode, err=one_line(message, _LONGEST_ERROR))
