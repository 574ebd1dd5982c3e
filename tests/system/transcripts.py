"""What commands printed, on a page and in truth, compared: all but chance and what is a machine's own has to agree."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from tests.system.pages import Block
from tests.system.pasting import Ran

_MACHINE = r"(?:.*; )?\d+ cores?, "
"""How the line about the machine begins, after its name: devices if there are any, then cores."""
_CHANCE = (
    (re.compile(r"\btokens_per_s [\d.e+]+"), "tokens_per_s SPEED"),
    # Any member may be the one that prints it.
    (re.compile(r"(?m)^  \S+ train_lora +(?=\d+ adapters, )"), "train_lora "),
    (re.compile(r"[\d,]+ during updates( \([^)]*\))?"), "SPEED during updates"),
    # What takes long says so now and then.
    (re.compile(r"(?m)^  (\S+( \S+)? +\d+(\.\d+)?m?s( +step \d.*)?|\d+ together +\S.* tokens/s)\n"), ""),
    (re.compile(rf"(?m)^\S+: {_MACHINE}[^;\n]*?\(\w+\)"), "MACHINE"),
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"~?\b\d+(\.\d+)?(ms|s|m|h)( \d+s)?(?=[\s).,;:]|$)"), "TIME"),
    (re.compile(r"\b\d+ (s|min|h) ago\b"), "AGO"),
    (re.compile(r"\b\d[\d,.]*( k)? tokens/s"), "SPEED"),
    (re.compile(r"\b\d+(\.\d+)? ([KMG]i)?B\b"), "SIZE"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"(?m)^ | $"), ""),
)


_COMPANY = re.compile(r"(?m)(?<=, one base, one process: )(.*\n)((?:^(?:[✓✗=] |train_lora \d).*\n)+)")
"""What is foreseen of a company, and the ends of its members, who end in any order."""


def told(ran: Ran, folder: Path) -> str:
    """Return what was printed as a page may show it: without this machine's name and folders."""
    text = ran.printed.replace(str(folder / "me"), "/home/me").replace(os.path.realpath(folder / "me"), "/home/me")
    host = platform.node().partition(".")[0]
    return re.sub(rf"(?m)^{re.escape(host)}: (?={_MACHINE})", "desk: ", text)


def agree(page: str, truth: str) -> bool:
    """Return whether two outputs are the same but for times, sizes, ids and the machine."""
    return settled(page) == settled(truth)


def settled(text: str) -> str:
    """Return an output without what is different every time."""
    for pattern, word in _CHANCE:
        text = pattern.sub(word, text)
    text = _COMPANY.sub(lambda found: found[1] + "".join(sorted(found[2].splitlines(keepends=True))), text)
    return text.strip()


def is_true(block: Block, steps: list[Ran], folder: Path) -> bool:
    """Return whether a transcript still shows what its commands print."""
    return all(agree(one.printed, told(ran, folder)) for one, ran in zip(block.typed(), steps, strict=True))


def rewritten(block: Block, steps: list[Ran], folder: Path) -> str:
    """Return a transcript with what is printed now."""
    pairs = zip(block.typed(), steps, strict=True)
    shown = [f"$ {one.command}\n{told(ran, folder).strip(chr(10))}".rstrip("\n") for one, ran in pairs]
    return "\n\n".join(shown) + "\n"
