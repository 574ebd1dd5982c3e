"""The digest of a checkpoint, a file or a folder, as `stoker_trainer` writes it down.

Of a file it is the SHA-256 of its bytes. Of a folder, that of a list with a line for each file: its name within the
folder, a zero byte and its digest, sorted by name. `stoker_trainer` has its own copy of this rule, since it imports
nothing of ours; a test holds the two together.
"""

from __future__ import annotations

import os

from stoker.model.digests import Digest, digest_bytes
from stoker.store.trees import hash_file


def digest_checkpoint(path: str) -> tuple[Digest, int]:
    """Give digest and size of what was saved. Raises ours if something can't be read."""
    if not os.path.isdir(path):
        return hash_file(path)
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    lines, size_bytes = [], 0
    for name, file in sorted((os.path.relpath(file, path), file) for file in found):
        digest, file_bytes = hash_file(file)
        size_bytes += file_bytes
        lines.append(f"{name}\0{digest}\n")
    return digest_bytes("".join(lines).encode("utf-8", "surrogateescape")), size_bytes
