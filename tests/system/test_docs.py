"""The documents tell the truth: their links lead somewhere and their command lines are ones that Stoker takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.system.shell import Shell

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text("utf-8")) if "://" not in target]
    assert not [target for target in targets if not (page.parent / target).exists()]


def _commands() -> list[str]:
    lines: dict[str, None] = {}
    for page in PAGES:
        for block in BLOCK.findall(page.read_text("utf-8")):
            for line in block.splitlines():
                text = line.split("#")[0].strip()
                for part in re.split(r";|&&|\|", text):
                    words = re.sub(r"^(\w+=\S+ )*", "", part.strip())
                    if words.startswith("stoker ") and "…" not in words:
                        lines[words] = None
    return list(lines)


@pytest.mark.parametrize(
    "line", [one for one in _commands() if one.startswith("stoker run tabular/") and "data=mine" not in one]
)
def test_a_documented_run_is_one_that_stoker_takes(line: str, shell: Shell) -> None:
    words = shlex.split(line)[1:]
    (shell.folder / "wine.csv").write_text("a,cultivar\n1,x\n2,y\n")
    done = shell.stoker(*words, *([] if "--dry-run" in words else ["--dry-run"]))
    assert done.code == 0, done.err


@pytest.mark.parametrize("line", _commands())
def test_a_documented_command_exists(line: str, shell: Shell) -> None:
    words = [word for word in shlex.split(line)[1:] if not word.startswith("-")]
    done = shell.stoker("help", *words[:1])
    assert done.code == 0, done.err
