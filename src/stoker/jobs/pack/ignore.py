"""Patterns that leave files out, with gitignore's syntax and meaning. Pure: paths are text, no file is looked at.

    # comment        *.log        /build/        data/**/raw        !data/small        [a-c]?.bin

The last pattern that fits decides; what lies below a folder that is left out stays out, whatever a later `!` says.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "\\x21-\\x7e",
    "lower": "a-z",
    "print": "\\x20-\\x7e",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t-\\r ",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_NEVER = "(?!)"
_ANY_NAME = "[^/]*"
_ANY_FOLDERS = "(?:.*/)?"
_IF_ANY = "(?>(?:.*?/)??"
_SPECIAL = re.compile(r"[*?\[\\]")


class _Pattern(NamedTuple):
    """One line."""

    fits: re.Pattern[str]
    is_for_folders: bool
    is_about_whole_path: bool
    """Otherwise it applies to the last part of a path, in any folder."""
    leaves_out: bool
    """Otherwise it includes a path again."""


class IgnorePatterns:
    """The patterns of one file, for paths below its folder."""

    def __init__(self, text: str) -> None:
        lines = _as_bytes(text.removeprefix("\ufeff")).split("\n")
        self._patterns = [one for line in lines if (one := _read(line)) is not None][::-1]
        self._folders: dict[str, bool] = {"": False}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def leaves_out(self, path: str) -> bool:
        """Return True if a file is left out, by its `/`-separated path: itself, or a folder above it."""
        return self.leaves_out_folder(path.rpartition("/")[0]) or self._decide(path, is_folder=False)

    def leaves_out_folder(self, path: str) -> bool:
        """Return True if a folder is left out."""
        known = self._folders.get(path)
        if known is None:
            above = self.leaves_out_folder(path.rpartition("/")[0])
            known = self._folders[path] = above or self._decide(path, is_folder=True)
        return known

    def _decide(self, path: str, *, is_folder: bool) -> bool:
        path = _as_bytes(path)
        name = path.rpartition("/")[2]
        for one in self._patterns:
            if one.is_for_folders and not is_folder:
                continue
            if one.fits.fullmatch(path if one.is_about_whole_path else name):
                return one.leaves_out
        return False


def _as_bytes(text: str) -> str:
    """Return a text with one character per byte: git matches bytes, so `?` does not match a letter beyond ASCII."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _read(line: str) -> _Pattern | None:
    text = _without_trailing_spaces(line.removesuffix("\r"))
    if not text or text.startswith("#"):
        return None
    leaves_out = not text.startswith("!")
    text = text if leaves_out else text[1:]
    is_for_folders = text.endswith("/")
    text = text.removesuffix("/")
    is_about_whole_path = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    return _Pattern(re.compile(_translated(text), re.DOTALL), is_for_folders, is_about_whole_path, leaves_out)


def _without_trailing_spaces(text: str) -> str:
    """Remove trailing spaces, except one after a backslash."""
    end, at = 0, 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            end = at + 1
        elif text[at] != " ":
            end = at + 1
        at += 1
    return text[:end]


def _translated(text: str) -> str:
    made, at = [], 0
    while at < len(text):
        char = text[at]
        if char == "*":
            piece, at = _stars(text, at)
        elif char == "?":
            piece, at = "[^/]", at + 1
        elif char == "[":
            piece, at = _bracket(text, at)
        elif char == "\\":
            if at + 1 == len(text):
                return _NEVER
            piece, at = re.escape(text[at + 1]), at + 2
        else:
            piece, at = re.escape(char), at + 1
        made.append(piece)
    return _joined(made)


def _joined(pieces: list[str]) -> str:
    """Join pieces into a pattern without slow backtracking.

    Between two stars, the first match is as good as any later one, so it is never tried again.
    """
    *firsts, last = _split(pieces, _ANY_FOLDERS)
    made = [f"{_IF_ANY}{_of_folders(part)})" if at else _of_folders(part) for at, part in enumerate(firsts)]
    return "".join((*made, _ANY_FOLDERS if firsts else "", _of_folders(last)))


def _of_folders(pieces: list[str]) -> str:
    return "/".join(_of_folder(part) for part in _split(pieces, "/"))


def _of_folder(pieces: list[str]) -> str:
    first, *others = _split(pieces, _ANY_NAME)
    parts = ["".join(part) for part in others]
    made = [f"(?>{_ANY_NAME}?{part})" for part in parts[:-1]]
    return "".join((*first, *made, *(f"{_ANY_NAME}{part}" for part in parts[-1:])))


def _split(pieces: list[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for piece in pieces:
        if piece == at:
            parts.append([])
        else:
            parts[-1].append(piece)
    return parts


def _stars(text: str, at: int) -> tuple[str, int]:
    """Parse one star, or two for any folders."""
    end = at
    while end < len(text) and text[end] == "*":
        end += 1
    # Git removes a literal prefix first: the pattern starts after it.
    begins = not _SPECIAL.search(text[:at]) or text[at - 1] == "/"
    is_alone = begins and (end == len(text) or text.startswith(("/", "\\/"), end))
    if end - at == 1 or not is_alone:
        return _ANY_NAME, end
    return (_ANY_FOLDERS, end + 1) if text.startswith("/", end) else (".*", end)


def _bracket(text: str, at: int) -> tuple[str, int]:
    """Parse `[…]`; an unclosed one matches nothing."""
    at += 1
    is_negated = at < len(text) and text[at] in "!^"
    at += is_negated
    parts: list[str] = []
    is_first = True
    while at < len(text) and (is_first or text[at] != "]"):
        is_first = False
        if text[at] == "[" and text[at + 1 : at + 2] == ":" and (end := text.find(":]", at + 2)) >= 0:
            if text[at + 2 : end] not in _CLASSES:
                return _NEVER, len(text)
            parts.append(_CLASSES[text[at + 2 : end]])
            at = end + 2
            continue
        low, at = _one(text, at)
        high = low
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("", "]"):
            high, at = _one(text, at + 1)
        if low and high and low <= high:
            parts.append(f"{re.escape(low)}-{re.escape(high)}")
    if at >= len(text):
        return _NEVER, len(text)
    inside = "".join(parts)
    if is_negated:
        return f"[^/{inside}]", at + 1
    return (f"(?!/)[{inside}]" if inside else _NEVER), at + 1


def _one(text: str, at: int) -> tuple[str, int]:
    """Parse one character of a bracket, which may be escaped."""
    if text[at] == "\\" and at + 1 < len(text):
        at += 1
    return text[at], at + 1
