"""uv as a program: where it is, what it is given of the user's settings, and what its failures mean.

A person's `PIP_*` settings are handed on under uv's own names, in variables: an index may have a password in it, and
arguments are seen by everybody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum

from stoker.host.entry import find_program
from stoker.host.installing import UV_SETTINGS
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.model.printable import one_line

_FROM_PIP = {
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
_LISTS_BY_COMMA = ("UV_FIND_LINKS",)
# They say which environment, which project or which Python is meant: we do.
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
# All that uv gets of a worker's variables where it runs as another user: what the operator configured for uv itself.
_FOR_OTHERS = ("LANG", "SSL_CERT_DIR", "SSL_CERT_FILE", *UV_SETTINGS)
_NAMED_INDEX = re.compile(r"UV_INDEX_[A-Z0-9_]+_(?:USERNAME|PASSWORD)")
_PROXIES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
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
    """A failure, judged."""

    trouble: Trouble
    why: str


def find_uv(own_prefix: str, environment: Mapping[str, str]) -> str:
    """Give uv's path: beside our own interpreter, else on `PATH`; empty if there is none."""
    beside = os.path.join(own_prefix, "bin", "uv")
    if os.access(beside, os.X_OK):
        return beside
    try:
        return find_program("uv", cwd="/", env=environment)
    except StokerError:
        return ""


def uv_environment(environment: Mapping[str, str], **ours: str) -> dict[str, str]:
    """Give the variables that uv is started with: the user's, his settings of pip under uv's names, and ours."""
    made = {name: value for name, value in environment.items() if name not in _OURS}
    for pip, uv in _FROM_PIP.items():
        value = environment.get(pip, "").strip()
        if value and not environment.get(uv):
            made[uv] = ",".join(value.split()) if uv in _LISTS_BY_COMMA else value
    made.setdefault("UV_PYTHON_DOWNLOADS", "never")
    return {**made, "UV_NO_PROGRESS": "1", "NO_COLOR": "1", **ours}


def uv_environment_for_others(environment: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the variables of a uv that runs as another user: the operator's settings for uv, and places of its own.

    `place` is that user's folder; nothing else of the worker's environment is passed on.
    """
    configured = {name: value for name, value in uv_environment(environment).items() if _is_for_others(name)}
    return {
        **configured,
        "PATH": os.defpath,
        "HOME": os.path.join(place, "home"),
        "TMPDIR": os.path.join(place, "tmp"),
        "UV_CACHE_DIR": os.path.join(place, "cache"),
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }


def _is_for_others(name: str) -> bool:
    return name in _FOR_OTHERS or name.lower() in _PROXIES or _NAMED_INDEX.fullmatch(name) is not None


def without_secrets(line: str) -> str:
    """Give a line of uv's without the names and passwords that addresses may have in them."""
    return _SECRETS.sub("***@", _CODES.sub("", line))


def diagnose(lines: Sequence[str], exit_code: int, *, where: str) -> Diagnosis:
    """Say what a failed run of uv means; `where` is the machine in words: `aarch64 cp311`.

    What may pass goes first: an index that does not answer also lets a package seem not to exist.
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
    """Give what uv said, in one line: from where its error begins."""
    clean = [line for line in (without_secrets(line).strip() for line in lines) if line]
    begin = next((at for at, line in enumerate(clean) if line.startswith(("error", "× ", "x "))), None)
    if begin is None and about is not None:
        begin = next((at for at, line in enumerate(clean) if about.search(line)), None)
    told = clean[begin:] if begin is not None else clean[-3:]
    words = " ".join(_BEGINNING.sub("", line) for line in told if not line.startswith("hint: "))
    return one_line(words.removeprefix("cause: ").replace(" cause: ", ": "), _LONGEST_WHY)
