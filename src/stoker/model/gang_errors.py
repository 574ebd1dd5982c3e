"""Errors of gangs: leaves of the tree in `model.errors`, exit codes 52 to 57."""

from __future__ import annotations

from typing import Any

from stoker.model.errors import BadInput, Damaged, Faults, Refused, Unavailable, WorkFailed


class BadGang(Faults):
    """Configs of ranks say something that can't be; no process was started."""

    code = "bad_gang"
    exit_code = 52


class BadCall(BadInput):
    """A function can't be sent to ranks: it, or what it is given, can't be pickled."""

    code = "bad_call"
    exit_code = 52


class GangNotUp(Refused):
    """Something was asked of a gang that has not been brought up."""

    code = "gang_not_up"
    exit_code = 53


class GangClosed(Refused):
    """Something was asked of a gang that is closed, or broken by a rank's failure."""

    code = "gang_closed"
    exit_code = 53


class RankFailed(WorkFailed):
    """A rank failed, and with it its gang. `data` has the cause, whom it dragged along, and who was still pending."""

    code = "rank_failed"
    exit_code = 54

    @property
    def rank(self) -> int:
        """Give the rank that failed first."""
        return int(self._read("rank", -1))

    @property
    def phase(self) -> str:
        return str(self._read("phase", ""))

    @property
    def traceback(self) -> str:
        """Give what its interpreter said; empty if it died without a word."""
        return str(self._read("traceback", ""))

    @property
    def crash(self) -> str:
        """Give what its native side said when it crashed, or where it was when it was silent."""
        return str(self._read("crash", ""))

    @property
    def collateral(self) -> tuple[dict[str, Any], ...]:
        """Give who failed after it, in order of time."""
        return tuple(self._read("collateral", ()))

    @property
    def pending(self) -> tuple[dict[str, Any], ...]:
        """Give who neither failed nor was done, and the phase of each."""
        return tuple(self._read("pending", ()))

    def _read(self, name: str, default: Any) -> Any:
        return self.data.get(name, default)


class RankSilent(RankFailed):
    """A rank did not get ready, or did not answer, in the time that was given."""

    code = "rank_silent"
    exit_code = 55


class WindowMismatch(Damaged):
    """A rank returned other buffers than it was promised to have."""

    code = "window_mismatch"
    exit_code = 56


class MeetingFailed(Unavailable):
    """The hosts of a gang did not come together: one did not arrive, gave up, or vanished. `data` says which."""

    code = "meeting_failed"
    exit_code = 57
