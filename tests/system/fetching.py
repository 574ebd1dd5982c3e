"""A user's shell for the tests of downloads: caches and settings of its own, no token and no proxy of anybody's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

from tests.system.shell import Shell

MIB = 1 << 20
_OTHERS = ("HF_", "HUGGING", "TRANSFORMERS_OFFLINE", "XDG_", "SSL_CERT", "REQUESTS_CA", "CURL_CA")


def fetching_shell(folder: Path, endpoint: str = "") -> Shell:
    """Return a shell whose hub is at an endpoint, if it has one."""
    shell = Shell(folder)
    shell.env = {
        name: value
        for name, value in shell.env.items()
        if not name.startswith(_OTHERS) and not name.lower().endswith("_proxy")
    }
    shell.env |= {"HF_HOME": str(folder / "hf"), "HOME": str(folder)}
    if endpoint:
        shell.env["HF_ENDPOINT"] = endpoint
    return shell


def some_bytes(size_bytes: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size_bytes)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree(folder: Path) -> set[str]:
    """Return every path below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
