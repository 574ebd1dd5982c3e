"""Under which name the ledger of devices charges a base that several attempts share."""

from __future__ import annotations

import os

from stoker.model.digests import digest_value


def held_base(word: str, user: int | None = None) -> str:
    """Give the name under which the ledger of devices charges what a company of a user's holds once."""
    return digest_value("company base", [word, os.geteuid() if user is None else user])[:32]
