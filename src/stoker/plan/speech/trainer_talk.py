"""What one attempt's program has said so far, and whether each line was right where it stood. Pure.

The last word (`done` or `failed`) is said once and nothing may follow it; a kind that the contract does not have is a
fault. Faults are told and nothing else: the exit status decides whether the program ran. A program that never says a
line of the contract can't break it: its JSON is ordinary output.
"""

from __future__ import annotations

from stoker.plan.speech.trainer_lines import (
    VERSION,
    Contract,
    Control,
    Done,
    Eval,
    GaveUp,
    Heartbeat,
    Malformed,
    Metrics,
    Plain,
    Said,
    Saved,
    Step,
    Unknown,
)

FAULTS_TOLD = 20
"""A program that does everything wrong is not worth more lines than these."""


class Talk:
    """Hears lines in order, from the program's output and its control file alike."""

    def __init__(self) -> None:
        self.last_word: Done | GaveUp | None = None
        self.speaks = False
        """Whether it has said a line of the contract: then it speaks for itself, and pairs in its output are text."""
        self.faults = 0
        self.lost = 0
        """Rows of metrics that the program had to drop, as far as it said."""
        self._is_foreign = False
        """It speaks another version of the contract, in which every line may mean something else."""

    def hear(self, said: Said) -> str | None:
        """Take a line in; gives `None` if it was right, else what was wrong: in words, or empty if enough was said."""
        match said:
            case Plain() | Metrics():
                fault = None
            case Malformed(why=why, shown=shown, is_metric_line=is_metric_line):
                fault = f"{why}: {shown}" if self.speaks or is_metric_line else None
            case Unknown(kind=kind):
                fault = f"the contract has no kind {kind!r}" if self.speaks else None
            case _:
                fault = self._take(said)
        return None if fault is None else self._count(fault)

    def hear_control(self, said: Said) -> str | None:
        """The same for a line of the control file, where every line is meant for us."""
        self.speaks = True
        return self.hear(said)

    def _take(self, said: Control) -> str | None:
        self.speaks = True
        if self.last_word is not None and not isinstance(said, Heartbeat):
            return f"{_NAMES[type(said)]} after the last word, which was {_NAMES[type(self.last_word)]}"
        if isinstance(said, Contract):
            self._is_foreign = said.version != VERSION
            return f"it speaks version {said.version} of the contract, we speak {VERSION}" if self._is_foreign else None
        if self._is_foreign:
            return f"{_NAMES[type(said)]} of another version of the contract is not read"
        if isinstance(said, Step):
            self.lost = max(said.lost, self.lost)
        elif isinstance(said, Done | GaveUp):
            self.last_word = said
        return None

    def _count(self, fault: str) -> str:
        self.faults += 1
        return fault if self.faults <= FAULTS_TOLD else ""


def eval_name(name: str) -> str:
    """Name a metric of an evaluation: `loss` of the training and of an evaluation are two curves."""
    return name if name.startswith(EVAL_PREFIX) else EVAL_PREFIX + name


EVAL_PREFIX = "eval/"

_NAMES: dict[type[Control], str] = {
    Contract: "contract",
    Step: "step",
    Eval: "eval",
    Saved: "saved",
    Done: "done",
    GaveUp: "failed",
    Heartbeat: "heartbeat",
}
