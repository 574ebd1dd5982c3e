"""One thing wrong with what a person wrote, and what may be fetched to mend it."""

from __future__ import annotations

from stoker.model.frozen import frozen


class Fault:
    """One thing wrong: where it is, what it is, what would be right; `shown` is the line itself, carets under it."""

    __slots__ = ("hint", "message", "shown", "where")

    def __init__(self, where: str, message: str, hint: str = "", shown: str = "") -> None:
        self.where = where
        self.message = message
        self.hint = hint
        self.shown = shown

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __repr__(self) -> str:
        return f"Fault({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fault):
            return NotImplemented
        mine, others = (self.where, self.message, self.hint), (other.where, other.message, other.hint)
        return (*mine, self.shown) == (*others, other.shown)

    def __hash__(self) -> int:
        return hash((self.where, self.message, self.hint, self.shown))

    def to_dict(self) -> dict[str, str]:
        more = {"hint": self.hint, "shown": self.shown}
        return {"where": self.where, "message": self.message, **{name: text for name, text in more.items() if text}}


@frozen
class Lack:
    """Files of one repository, without which nobody can say whether work is right."""

    argument: str
    """Of the recipe, which names the repository."""
    repo: str
    """As it was typed: `org/name`, or `org/name@revision`."""
    names: tuple[str, ...]
    """What is wanted next, by name or pattern: the small files that may still refuse it come before the large ones."""
    whole: tuple[str, ...]
    """All that will be wanted, by name or pattern."""
