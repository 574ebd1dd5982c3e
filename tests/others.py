"""Other users of this machine, in tests that run as root."""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Make a folder that everybody may enter. Not below pytest's own: each pytest that starts closes that to others."""
    with tempfile.TemporaryDirectory(prefix="stoker-for-all-") as name:
        # Who is somebody else may not be able to load it: this interpreter can lie in its owner's home.
        codecs.lookup("ascii")
        folder = Path(name)
        folder.chmod(0o755)
        for above in folder.parents:
            if not above.stat().st_mode & 0o001:
                above.chmod(0o755)
        yield folder
