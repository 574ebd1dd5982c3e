"""Names of files that somebody else chose, judged before anything is written under them.

The rules are those of POSIX and of Windows together, whatever runs here: a folder that was filled on one machine is
copied to another, and a name that leads elsewhere there must not be written here. Names are relative, `/`-separated.
What a bad name means is for the caller to say: a server that lists one answers badly, a person who types one errs.
Where a name leads once links are planted below a folder is the affair of `anchored`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from stoker.model.errors import BadInput
from stoker.model.printable import one_line

LONGEST_COMPONENT_BYTES = 255
LONGEST_NAME_BYTES = 1024
MOST_LEVELS = 100
_SHOWN_CHARACTERS = 120
_FAULTS = (
    (re.compile(r"[\x00-\x1f\x7f-\x9f]"), "it has a control character"),
    (re.compile(r"[\ud800-\udfff]"), "it is not Unicode text"),
    (re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"), "it has a character that turns the text around"),
    (re.compile(r"[\u2028\u2029]"), "it has a line break"),
    (re.compile(r"\\"), "it has a backslash"),
    (re.compile(r"\A/"), "it is absolute"),
    (re.compile(r":"), "it has a colon, which names a drive or a hidden stream"),
)
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"}
    # Windows takes the three superscript digits for digits here.
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"}
)


def check_name(path: str) -> str:
    """Give a name that our own side chose back if it is safe to write under. Raises `BadInput`, which says why not."""
    fault = name_fault(path)
    if fault:
        shown = shown_name(path)
        raise BadInput(f"unsafe name: {shown}: {fault}", hint="nothing was written", name=shown)
    return path


def shown_name(path: str) -> str:
    """Give a name as a message shows it, whatever is in it: quoted, in ASCII, cut where it is too long to be read."""
    # What is cut off is not even quoted: a name may have megabytes.
    return one_line(ascii(path[:_SHOWN_CHARACTERS]) + ("…" if len(path) > _SHOWN_CHARACTERS else ""), _SHOWN_CHARACTERS)


def name_fault(path: str) -> str:
    """Say what makes a name unsafe; nothing if it is safe."""
    if not path:
        return "it is empty"
    # First, so that nothing else has to be quick for names of any length.
    if len(path) > LONGEST_NAME_BYTES or len(path.encode("utf-8", "surrogatepass")) > LONGEST_NAME_BYTES:
        return f"it is longer than {LONGEST_NAME_BYTES} bytes"
    if path.count("/") >= MOST_LEVELS:
        return f"it is more than {MOST_LEVELS} levels deep"
    for pattern, fault in _FAULTS:
        if pattern.search(path):
            return fault
    return next((fault for part in path.split("/") if (fault := _component_fault(part))), "")


def clashes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Give the groups of names that are one file on some machine, or where one would have to be a file and a folder.

    One file: they differ only in case, or in the way that Unicode composes a letter.
    """
    files: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        files.setdefault(_folded(name), []).append(name)
    found = [tuple(group) for group in files.values() if len(group) > 1]
    # Sorted so that what lies below a name follows it at once, the way there is never walked part by part.
    above: list[str] = []
    for folded in sorted(files, key=lambda name: name.replace("/", "\0")):
        while above and not folded.startswith(f"{above[-1]}/"):
            above.pop()
        if above:
            found.append((files[above[-1]][0], files[folded][0]))
        above.append(folded)
    return tuple(found)


def _component_fault(part: str) -> str:
    if not part:
        return "it has an empty part"
    if part in {".", ".."}:
        return f"it has a part {part!r}"
    if part[-1] in ". ":
        return "a part ends in a dot or a space"
    if part.partition(".")[0].rstrip(" ").casefold() in _DEVICES:
        return f"{part!r} is a device on Windows"
    if len(part.encode()) > LONGEST_COMPONENT_BYTES:
        return f"a part is longer than {LONGEST_COMPONENT_BYTES} bytes"
    return ""


def _folded(name: str) -> str:
    # Folding may compose anew, so it is brought into one form before and after.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
