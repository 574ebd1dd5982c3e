"""Lines pasted at a shell's prompt: a real interactive bash or zsh reads them, one after the other.

`words_of` lets a shell take lines apart and runs none of them. `live_through` runs a page's examples as its reader
would, in a folder and a home of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.system.pages import Block

# As they come: no settings of anybody's.
SHELLS = {
    "bash": ("bash", "--noprofile", "--norc", "--noediting", "-i", "-s"),
    "zsh": ("zsh", "-f", "-i", "-o", "no_prompt_sp", "-o", "no_prompt_cr", "-s"),
}
PATIENCE_S = 60.0
OWN_PROGRAMS = Path(sys.executable).parent

# Every program is one that can't be found, and whoever is not found writes down the words it was called with.
_STUBS = """
record() { local all; all=$(printf '%s\\037' "$@"; printf .); printf '%s\\036' "$all" >> "$RECORD"; }
command_not_found_handle() { record "$@"; }
command_not_found_handler() { record "$@"; }
cd() { record cd "$@"; }
kill() { record kill "$@"; }
"""
_EXPECTED = re.compile(r"bash: (cannot set terminal process group|no job control)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What a shell made of some lines."""

    commands: list[list[str]]
    complaints: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One command, or one block of them, as it went."""

    printed: str
    code: int
    failed: list[int]
    """The codes of all commands in it that failed."""


def has(shell: str) -> bool:
    return shutil.which(SHELLS[shell][0]) is not None


def words_of(shell: str, text: str, folder: Path) -> Understood:
    """Return the words that a shell hands to each program, in no order where there is a pipe."""
    record = folder / f"{shell}.record"
    record.touch()
    env = {"PATH": "/nowhere", "HOME": "/home/me", "RECORD": str(record), "PS1": "", "PS2": ""}
    said = _paste(shell, _STUBS + text, folder, env)
    found = [one.removesuffix(".").split("\037")[:-1] for one in record.read_text("utf-8").split("\036")[:-1]]
    record.unlink()
    complaints = [line for line in said.splitlines() if re.match(r"(bash|zsh):", line) and not _EXPECTED.match(line)]
    return Understood(commands=sorted(found), complaints=complaints)


def live_through(shell: str, blocks: Iterable[Block], folder: Path, programs: Path = OWN_PROGRAMS) -> list[list[Ran]]:
    """Run the examples of a page in order, in one session; give for each block how each of its steps went.

    `stoker` is that of the folder `programs`.
    """
    work = _make_home(folder)
    lines = ["exec 2>&1", "ended() { printf '\\036%s\\036' \"$1\"; }", "failed() { printf '\\035%s\\035' \"$1\"; }"]
    lines += [f"trap 'failed $?' {'ZERR' if shell == 'zsh' else 'ERR'}", "ended 0"]
    steps = []
    for number, block in enumerate(blocks):
        if block.file:
            saved = folder / f"file-{number}"
            saved.write_text(block.text, "utf-8")
            lines.append(f"mkdir -p ./{Path(block.file).parent} && cp {saved} {block.file}")
            continue
        texts = [block.text] if block.language == "bash" else [one.command for one in block.typed()]
        steps.append(len(texts))
        for text in texts:
            lines += [text.rstrip("\n"), "ended $?"]
    env = {
        "PATH": os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(work.parent),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PS1": "",
        "PS2": "",
    }
    said = _paste(shell, "\n".join(lines) + "\n", work, env)
    parts = iter(_split(said))
    return [[next(parts) for _ in range(count)] for count in steps]


def _make_home(folder: Path) -> Path:
    """Make a user's home with a project in it, which has its own Python as projects do."""
    work = folder / "me" / "project"
    scripts = work / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python").symlink_to(os.path.realpath(sys.executable))
    return work


def _split(said: str) -> list[Ran]:
    pieces = said.split("\036")
    # What stands before the first mark is the shell's own greeting.
    found = []
    for printed, code in zip(pieces[2::2], pieces[3::2], strict=False):
        failed = [int(one) for one in re.findall("\035(\\d+)\035", printed)]
        found.append(Ran(printed=re.sub("\035\\d+\035", "", printed), code=int(code), failed=failed))
    return found


def _paste(shell: str, text: str, folder: Path, env: dict[str, str]) -> str:
    argv: Sequence[str] = SHELLS[shell]
    program = shutil.which(argv[0])
    assert program, f"there is no {shell}"
    done = subprocess.run(
        [program, *argv[1:]],
        input=text.encode(),
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Not the terminal of whoever runs the tests.
        start_new_session=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout.decode(errors="replace")
