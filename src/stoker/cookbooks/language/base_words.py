"""The word by which trainings over one base find each other, before and while they run: said in one place."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.digests import digest_value


def company_word(contents: Iterable[str], dtype: str) -> str:
    """Return what members of one company have in common: what the files of their base hold, and how it is held."""
    return digest_value("language base", [sorted(contents), dtype])[:32]
