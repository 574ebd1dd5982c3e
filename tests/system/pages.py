"""The pages of this repository and the examples in them, by one convention (CONTRIBUTING.md tells it to writers).

```bash              lines to paste at a prompt, without comments: zsh takes `#` there for a word
```bash run          the same, and a test runs them; `exit=1` if the last one is meant to fail
```console           a transcript: what follows `$ ` is typed, the rest is what was printed
```console run       the same, and a test compares it with what is printed now
```console run slow  the same, but in `make soak` only, as all of its page: it takes long
```python file=x.py  any language: the reader saves it under that name before going on
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
GENERATED = ROOT / "docs" / "reference"

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A command in a transcript and what it printed."""

    command: str
    printed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands between two fences."""

    page: Path
    start: int
    """Where its text begins on the page, and where that ends."""
    end: int
    language: str
    marks: frozenset[str]
    text: str

    @property
    def is_shell(self) -> bool:
        return self.language in ("bash", "console")

    @property
    def is_run(self) -> bool:
        return "run" in self.marks

    @property
    def is_slow(self) -> bool:
        return "slow" in self.marks

    @property
    def file(self) -> str:
        """The name it is saved under, or nothing."""
        return self._mark("file")

    @property
    def exit_code(self) -> int:
        """What its last command ends with."""
        return int(self._mark("exit") or 0)

    def typed(self) -> list[Typed]:
        """Take a transcript apart."""
        found = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append(Typed(command=command, printed=printed))
        return found

    def to_paste(self) -> str:
        """Return what a reader pastes."""
        if self.language == "bash":
            return self.text
        return "".join(f"{one.command}\n" for one in self.typed())

    def _mark(self, name: str) -> str:
        return next((mark.partition("=")[2] for mark in self.marks if mark.startswith(f"{name}=")), "")


def blocks_of(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text("utf-8")
    for found in _FENCE.finditer(text):
        language, *marks = found[1].split() or [""]
        yield Block(
            page=page,
            start=found.start(2),
            end=found.end(2),
            language=language,
            marks=frozenset(marks),
            text=found[2],
        )


def to_paste(page: Path) -> str:
    """Return everything that a reader of a page pastes."""
    return "".join(block.to_paste() for block in blocks_of(page) if block.is_shell)


def name_of(page: Path) -> str:
    """Name a page as its readers do."""
    return str(page.relative_to(ROOT))
