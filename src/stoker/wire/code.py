"""Which code a machine or a coordinator takes: named by tree or by commit. Pure, the same for whoever asks."""

from __future__ import annotations

from collections.abc import Sequence

_SHORTEST = 7
"""So many digits of a commit or tree name it."""
_SHOWN = 12
_MOST_SHOWN = 3


def why_not_accepted(accepts: Sequence[str], tree: str, commit: str) -> str:
    """Say why a program's code is not taken by who accepts only these trees and commits; nothing if it is.

    A commit means the code as committed: with changes on top it is another. Of an empty list everything is taken.
    """
    if not accepts:
        return ""
    listed = ", ".join(one[:_SHOWN] for one in accepts[:_MOST_SHOWN])
    only = f"accepts only {listed}{f' and {len(accepts) - _MOST_SHOWN} more' if len(accepts) > _MOST_SHOWN else ''}"
    if not tree:
        return f"{only}, and this runs in a folder: nobody knows which code that is"
    if any(_is_meant(one, tree) or _is_meant(one, commit) for one in accepts):
        return ""
    base, plus, count = commit.partition("+")
    if plus and any(_is_meant(one, base) for one in accepts):
        return f"{only}, and this is {base[:_SHOWN]} with {count} uncommitted change{'' if count == '1' else 's'}"
    return f"{only}, and this is {f'commit {base[:_SHOWN]}' if base else f'tree {tree[:_SHOWN]}'}"


def is_code_word(text: str) -> bool:
    """Say whether a text can name a tree or a commit."""
    return len(text) >= _SHORTEST and len(text) <= 64 and all(char in "0123456789abcdef" for char in text)


def _is_meant(word: str, name: str) -> bool:
    return len(word) >= _SHORTEST and name.startswith(word) and "+" not in name
