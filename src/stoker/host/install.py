"""Installed packages of an environment, and the program uv: its path, its settings and the meaning of its failures.

The user's `PIP_*` settings are passed under uv's own names, in variables: an index may have a password in it, and
arguments are visible to all users. Kept apart from `interpreter`, which cached runs do not need.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from stoker.core.digests import digest_bytes
from stoker.core.errors import MissingExtra, StokerError
from stoker.core.frozen import frozen
from stoker.core.text import one_line
from stoker.host.folders import names_in

_DIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([^-]+)\.dist-info")


def packages_in(prefix: str) -> dict[str, str]:
    """Return the packages below a prefix with their versions, by their metadata folders; nothing is started."""
    found = (_DIST.fullmatch(os.path.basename(place)) for place in package_folders(prefix))
    return {one[1].replace("_", "-").lower(): one[2] for one in found if one is not None}


def packages_digest(packages: Mapping[str, str]) -> str:
    """Return the SHA-256 of lines `NAME==VERSION`, sorted; empty if there are no packages."""
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))
    return digest_bytes(lines.encode(errors="replace")) if lines else ""


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
    **dict.fromkeys(("gguf", "numpy", "tokenizers"), "crossval"),
    "psycopg": "postgres",
    "textual": "tui",
}
"""The extra of pyproject.toml that installs each optional library of Stoker itself."""

OWN_EXTRAS = frozenset({"bitsandbytes"})
"""Libraries of some recipes of a cookbook only: the extra has the name of the library, not of the cookbook."""


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


FROM_PIP = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
    "PIP_CONSTRAINT": "UV_CONSTRAINT",
    "PIP_PROXY": "ALL_PROXY",
}
"""Names of pip's variables at uv."""
_LISTS_BY_COMMA = ("UV_FIND_LINKS",)
# They select an environment, a project or a Python: the build does that.
_OURS = (
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_ACTIVE",
    "UV_FROZEN",
    "UV_LOCKED",
    "UV_NO_SYNC",
    "UV_OUTPUT_FORMAT",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_TARGET",
    "UV_WORKING_DIR",
    "UV_WORKING_DIRECTORY",
    "VIRTUAL_ENV",
)
_LONGEST_WHY = 300
_BEGINNING = re.compile(r"^[×╰─▶│├→ ]*(?:error: )?")
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@")
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NO_WHEEL = re.compile(
    r"Distribution `([A-Za-z0-9._-]+)==\S+ @ \S+` can't be installed because|"
    r"Because ([A-Za-z0-9._-]+)==\S+ has no wheels with a matching"
)
_PASSING = re.compile(
    r"No space left|Disk quota|Read-only file system|Permission denied|dns error|error sending request|"
    r"[Cc]onnection (?:refused|reset|closed)|tcp connect|timed? ?out|Failed to fetch|Failed to download|"
    r"[Nn]etwork (?:connectivity )?(?:is|was) disabled|not found in the cache|Could not connect|"
    r"HTTP status (?:client|server) error|"
    r"\b(?:401|403|429|50[0-4]) |TLS|certificate|Hash mismatch|Too many open files|Cannot allocate memory|"
    r"stream ended|error decoding response"
)
_IMPOSSIBLE = re.compile(
    r"has no wheels? with a matching|no matching Python|does not satisfy Python|requires Python|"
    r"is not compatible with|No solution found|has no usable wheels|[Bb]uilding source distributions .*disabled|"
    r"Failed to build|[Bb]uild backend|No interpreter found|unsatisfiable|was not found in"
)


class Trouble(Enum):
    """What a failure of uv means for this machine."""

    IMPOSSIBLE = "impossible"
    PASSING = "passing"


@frozen
class Diagnosis:
    """The cause of a failure."""

    trouble: Trouble
    why: str


def find_uv(own_prefix: str, environment: Mapping[str, str]) -> str:
    """Return uv's path: beside our own interpreter, else on `PATH`; empty if there is none."""
    beside = os.path.join(own_prefix, "bin", "uv")
    if os.access(beside, os.X_OK):
        return beside
    from stoker.host.box_entry import find_program  # noqa: PLC0415 - runs that find all results need no socket

    try:
        return find_program("uv", cwd="/", env=environment)
    except StokerError:
        return ""


def uv_environment(environment: Mapping[str, str], **ours: str) -> dict[str, str]:
    """Return uv's variables: the user's, their pip settings under uv's names, and ours."""
    made = {name: value for name, value in environment.items() if name not in _OURS}
    for pip, uv in FROM_PIP.items():
        value = environment.get(pip, "").strip()
        if value and not environment.get(uv):
            made[uv] = ",".join(value.split()) if uv in _LISTS_BY_COMMA else value
    made.setdefault("UV_PYTHON_DOWNLOADS", "never")
    return {**made, "UV_NO_PROGRESS": "1", "NO_COLOR": "1", **ours}


def without_secrets(line: str) -> str:
    """Return a line of uv's output without user names and passwords in URLs."""
    return _SECRETS.sub("***@", _CODES.sub("", line))


def diagnose(lines: Sequence[str], exit_code: int, *, where: str) -> Diagnosis:
    """Return the cause of a failed run of uv; `where` names the machine: `aarch64 cp311`.

    Passing failures are checked first: if an index does not answer, a package also seems not to exist.
    """
    text = "\n".join(lines)
    flat = " ".join(text.split())
    if _PASSING.search(flat):
        return Diagnosis(trouble=Trouble.PASSING, why=_reason(lines, _PASSING) or f"uv ended with {exit_code}")
    missing = _NO_WHEEL.search(flat)
    if missing:
        return Diagnosis(trouble=Trouble.IMPOSSIBLE, why=f"no wheel of {missing[1] or missing[2]} for {where}")
    if _IMPOSSIBLE.search(flat):
        return Diagnosis(trouble=Trouble.IMPOSSIBLE, why=_reason(lines, _IMPOSSIBLE) or f"uv ended with {exit_code}")
    return Diagnosis(trouble=Trouble.PASSING, why=_reason(lines, None) or f"uv ended with {exit_code}")


def _reason(lines: Sequence[str], about: re.Pattern[str] | None) -> str:
    """Return uv's error in one line."""
    clean = [line for line in (without_secrets(line).strip() for line in lines) if line]
    begin = next((at for at, line in enumerate(clean) if line.startswith(("error", "× ", "x "))), None)
    if begin is None and about is not None:
        begin = next((at for at, line in enumerate(clean) if about.search(line)), None)
    shown = clean[begin:] if begin is not None else clean[-3:]
    words = " ".join(_BEGINNING.sub("", line) for line in shown if not line.startswith("hint: "))
    return one_line(words.removeprefix("cause: ").replace(" cause: ", ": "), _LONGEST_WHY)
