"""Keeping the checkpoints of a program that reports them in lines, by the rules of `stoker_trainer`.

A thread does it, since hashing takes as long as reading: the program and whoever listens to it go on meanwhile. A file
that is changed while it is being kept is not named. Only the newest report waits; one that a newer one overtakes is
told as such.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from stoker.plan.speech.trainer_lines import Saved

CLOSE_S = 60.0


class CheckpointKeeper:
    """Keeps what one attempt's program reports to have saved; `tell` gets a line about what could not be kept."""

    def __init__(
        self,
        *,
        folder: str,
        scratch: str,
        resume_key: str,
        tell: Callable[[str], None],
        acting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Make it; `acting` gives the block in which files are read and written."""
        self._folder = folder
        self._scratch = scratch
        self._resume_key = resume_key
        self._tell = tell
        self._acting = acting
        self._turn = threading.Condition()
        self._waiting: Saved | None = None
        self._is_over = False
        self._thread: threading.Thread | None = None

    def keep(self, saved: Saved) -> None:
        """Take a report in; returns at once."""
        with self._turn:
            overtaken, self._waiting = self._waiting, saved
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stoker-checkpoints", daemon=True)
                self._thread.start()
            self._turn.notify()
        if overtaken is not None:
            self._tell(f"checkpoint {overtaken.path} is not kept: a newer one came before its turn")

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait until everything is kept."""
        with self._turn:
            self._is_over = True
            self._turn.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._tell(f"its last checkpoint was not kept within {timeout_s:g} s")

    def _run(self) -> None:
        # Part of the users' side, and imported by ours for this alone: one rule, in one place.
        from stoker.trainer.stoker_trainer import keep_checkpoint  # noqa: PLC0415 - only for programs that save so

        while True:
            with self._turn:
                while self._waiting is None and not self._is_over:
                    self._turn.wait()
                saved, self._waiting = self._waiting, None
            if saved is None:
                return
            try:
                path = os.path.abspath(os.path.join(self._folder, saved.path))
                with self._acting():
                    keep_checkpoint(path, saved.step, self._scratch, self._resume_key)
            except (OSError, ValueError) as error:
                self._tell(f"checkpoint {saved.path} is not kept: {error}")
