"""Programs that are asked without being started: answers by script, for tests of whoever reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.host.command_runner import LIMIT_S, ProbeFailure, ProbeOutput, Reply

RECORDINGS = Path(__file__).parents[1] / "recordings"


def recorded(name: str, *, exit_code: int = 0) -> ProbeOutput:
    """Return a recording as a program's answer."""
    # As the real asker does, NULs and bytes that are no text included.
    text = (RECORDINGS / name).read_bytes().decode("utf-8", "replace").replace("\0", "")
    return ProbeOutput(out=text, exit_code=exit_code)


class ScriptedAsker:
    """Answers by the program's name. What was asked is in `asked`, how long it might take in `limits_s`."""

    def __init__(self, answers: Mapping[str, Reply | Callable[[Sequence[str]], Reply]]) -> None:
        self._answers = answers
        self.asked: list[Sequence[str]] = []
        self.limits_s: list[float] = []

    def ask(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: str = "") -> Reply:
        self.asked.append(argv)
        self.limits_s.append(limit_s)
        script = next((os.path.basename(word) for word in argv[1:] if word.endswith(".py")), "")
        answer = self._answers.get(script or os.path.basename(argv[0]))
        if answer is None:
            return ProbeFailure(why=f"{argv[0]}: no such program", code="probe_missing")
        return answer(argv) if callable(answer) else answer

    def ask_all(self, questions: Sequence[Sequence[str]], *, limit_s: float = LIMIT_S) -> tuple[Reply, ...]:
        return tuple(self.ask(argv, limit_s=limit_s) for argv in questions)
