"""The nearest name to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MANY = 500
_ALIKE = 0.6


def nearest(name: str, known: Iterable[str], *, likeness: float = _ALIKE) -> str | None:
    """Give the known name that was probably meant, or nothing. `likeness` is how alike they must be, at most 1."""
    from difflib import get_close_matches  # noqa: PLC0415 - 4 ms that only a misspelt word should cost

    candidates = list(known)
    if len(candidates) > _MANY:
        # Comparing takes 50 µs a name: among very many, only those that begin alike and are about as long.
        candidates = [one for one in candidates if one[:1] == name[:1] and abs(len(one) - len(name)) <= 2][:_MANY]
    found = get_close_matches(name.lower(), [candidate.lower() for candidate in candidates], n=1, cutoff=likeness)
    if found:
        return next(candidate for candidate in candidates if candidate.lower() == found[0])
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give a hint such as `did you mean 'depth'?`, or an empty text."""
    candidate = nearest(name, known)
    return f"did you mean {candidate!r}?" if candidate else ""


def did_you_mean_path(name: str, known: Sequence[str]) -> str:
    """Give the same hint for dotted names, of which people often type only the last part: `depth` for `model.depth`."""
    ends = {path.rpartition(".")[2]: path for path in reversed(known)}
    candidate = nearest(name, known) if "." in name else None
    candidate = candidate or ends.get(nearest(name.rpartition(".")[2], ends) or "")
    return f"did you mean {candidate!r}?" if candidate else ""
