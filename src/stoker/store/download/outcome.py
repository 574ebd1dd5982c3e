"""What came of one of many wanted files."""

from __future__ import annotations

from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.store.download.wanted import Fetched


@frozen
class Outcome:
    """One wanted file: it is there, or the error that kept it away."""

    label: str
    """What people call it: `org/repo: model.gguf`."""
    fetched: Fetched | None = None
    """Its path is the one that a person looks for: in the snapshot, or in the folder that was named."""
    error: StokerError | None = None
