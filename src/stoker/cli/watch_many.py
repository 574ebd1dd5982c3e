"""Lines about many jobs: the first of them, and how many more there are. JSON has all of them elsewhere."""

from __future__ import annotations

from stoker.cli.context import CommandContext

_MOST_LISTED = 20


class FirstLines:
    """Says a line for each job, of a large sweep only the first ones."""

    def __init__(self, call: CommandContext) -> None:
        self._out = call.out
        self._count = 0

    def say(self, line: str) -> None:
        """Say one, if not too many were said."""
        self._count += 1
        if self._count <= _MOST_LISTED:
            self._out.line(line)

    def end(self) -> None:
        """Say how many were left out."""
        if self._count > _MOST_LISTED:
            self._out.line(f"… and {self._count - _MOST_LISTED:,} more")
