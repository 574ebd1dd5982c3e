"""The model card among the files of a result, as screens get it. Pure.

Cookbooks write `model-card.md` beside a model; a program may write that or a README into its result.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.protocol.screen_messages import ResultCard

LARGEST_CARD_BYTES = 256 * 1024
"""Of a longer card the beginning is shown."""
_NAMES = ("model-card.md", "model_card.md", "modelcard.md", "readme.md")
"""The first that is there counts."""


def card_path(paths: Iterable[str]) -> str:
    """Return the path of the card among those of a result: by its name, then the nearest to the top; empty: none."""
    found = [(_NAMES.index(name), path.count("/"), path) for path in paths if (name := _name(path)) in _NAMES]
    return min(found)[2] if found else ""


def card_view(job: str, digest: str, path: str = "", data: bytes = b"") -> ResultCard:
    """Return a card, without a path the note that there is none. `data` may be more than is shown."""
    if not path:
        return ResultCard(job=job, digest=digest, note="the result has no model-card.md and no README.md")
    text = data[:LARGEST_CARD_BYTES].decode(errors="replace")
    note = "" if text.strip() else f"{path} is empty"
    return ResultCard(job=job, digest=digest, path=path, text=text, is_cut=len(data) > LARGEST_CARD_BYTES, note=note)


def _name(path: str) -> str:
    return path.rpartition("/")[2].lower()
