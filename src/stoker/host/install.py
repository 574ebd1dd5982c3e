"""Installed packages of an environment, the settings of uv, and the command that installs what is missing.

Kept apart from `interpreter`, which cached runs do not need.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator

from stoker.core.errors import MissingExtra
from stoker.host.folders import names_in

_DIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([^-]+)\.dist-info")


def packages_in(prefix: str) -> dict[str, str]:
    """Return the packages below a prefix with their versions, by their metadata folders; nothing is started."""
    found = (_DIST.fullmatch(os.path.basename(place)) for place in package_folders(prefix))
    return {one[1].replace("_", "-").lower(): one[2] for one in found if one is not None}


def package_folders(prefix: str) -> Iterator[str]:
    """Return the folders that hold package metadata."""
    for library in (os.path.join(prefix, "lib"), os.path.join(prefix, "local", "lib")):
        for folder in names_in(library):
            for packages in ("site-packages", "dist-packages") if folder.startswith("python3") else ():
                place = os.path.join(library, folder, packages)
                yield from (os.path.join(place, name) for name in names_in(place) if name.endswith(".dist-info"))


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
"""Variables by which an operator configures uv: services and builds as other users get them."""


def pip_install(*names: str) -> str:
    """Return the command that installs distributions for the interpreter that runs this, to be pasted into a shell.

    A plain `pip` may well be that of another environment.
    """
    return shlex.join((sys.executable, "-m", "pip", "install", *names))


_EXTRA_OF = {
    **dict.fromkeys(("cryptography", "packaging", "pydantic", "pydantic_core", "zstandard"), "fleet"),
    **dict.fromkeys(("alembic", "fastapi", "httptools", "sqlalchemy", "starlette", "uvicorn", "uvloop"), "serve"),
    "psycopg": "postgres",
}
"""The extra of pyproject.toml that installs each optional library of Stoker itself."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error that names the extra to install; None if no extra of ours brings the missing module."""
    library = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(library)
    if extra is None:
        return None
    trace = error.__traceback__
    while trace is not None:
        # The coordinator needs more than the first missing library.
        if extra == "fleet" and trace.tb_frame.f_globals.get("__name__", "").startswith("stoker.coordinator"):
            extra = "serve"
        trace = trace.tb_next
    return MissingExtra(f"{library} is not installed", hint=pip_install(f"stoker[{extra}]"), extra=extra)
