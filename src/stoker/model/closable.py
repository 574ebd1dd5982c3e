"""Things that are closed at the end of a with-block, whatever ends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closable(ABC):
    """Has `close`, and so may stand in a with-block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds. Twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
