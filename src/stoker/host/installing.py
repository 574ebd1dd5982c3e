"""How something is installed on this machine: by which command, and by which of the operator's settings for uv."""

from __future__ import annotations

import shlex
import sys

UV_SETTINGS = (
    "UV_CONSTRAINT",
    "UV_DEFAULT_INDEX",
    "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_HTTP_RETRIES",
    "UV_HTTP_TIMEOUT",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_INSECURE_HOST",
    "UV_NATIVE_TLS",
    "UV_NO_INDEX",
    "UV_OFFLINE",
    "UV_PYTHON_DOWNLOADS",
    "UV_SYSTEM_CERTS",
)
"""Variables by which an operator says where and how uv gets packages: services and builds as other users get them."""


def pip_install(*names: str) -> str:
    """Return the command that installs distributions for the interpreter that runs this, to be pasted into a shell.

    A plain `pip` may well be that of another environment.
    """
    return shlex.join((sys.executable, "-m", "pip", "install", *names))
