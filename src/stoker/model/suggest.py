"""The nearest name to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable

_MANY = 500


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Give the known name that was probably meant, or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415 - 4 ms that only a misspelt word should cost

    candidates = list(known)
    if len(candidates) > _MANY:
        # Comparing takes 50 µs a name: among very many, only those that begin alike and are about as long.
        candidates = [one for one in candidates if one[:1] == name[:1] and abs(len(one) - len(name)) <= 2][:_MANY]
    found = get_close_matches(name.lower(), [candidate.lower() for candidate in candidates], n=1, cutoff=0.6)
    if found:
        return next(candidate for candidate in candidates if candidate.lower() == found[0])
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give a hint such as `did you mean 'depth'?`, or an empty text."""
    candidate = nearest(name, known)
    return f"did you mean {candidate!r}?" if candidate else ""
