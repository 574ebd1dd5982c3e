"""The documents tell the truth: links lead somewhere, examples paste into bash and zsh, and do what the page says."""

from __future__ import annotations

import itertools
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from stoker.cli.commands import COMMANDS, expand, find_command, take_flags, top_help
from tests.fakes.overrides import parse_overrides
from tests.system.pages import GENERATED, PAGES, ROOT, Block, blocks_of, name_of, to_paste
from tests.system.pasting import Understood, has, live_through, words_of
from tests.system.shell import Shell
from tests.system.transcripts import agree, settled, told

LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)]*))?\)")
FENCED = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NO_ZSH = "there is no zsh here: bash alone was tried"

WITH_EXAMPLES = [page for page in PAGES if any(block.is_shell for block in blocks_of(page))]
WITH_RUNS = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]


def test_there_are_pages_with_examples() -> None:
    assert ROOT / "README.md" in WITH_RUNS
    assert len(WITH_EXAMPLES) > len(WITH_RUNS)


def test_links_lead_somewhere() -> None:
    texts = {page: FENCED.sub("", page.read_text("utf-8")) for page in PAGES}
    anchors = {page: _anchors(text) for page, text in texts.items()}
    lost = []
    for page, text in texts.items():
        for to, anchor in LINK.findall(text):
            target = (page.parent / to).resolve() if to else page
            is_there = "://" in to or target.exists()
            if not is_there or (anchor and target in anchors and anchor not in anchors[target]):
                lost.append((name_of(page), to, anchor))
    assert not lost


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as the hosts of repositories and the site make them."""
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().strip() for heading in HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_headings_skip_no_level() -> None:
    for page in PAGES:
        headings = re.findall(r"^(#+) ", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
        levels = [len(marks) for marks in headings]
        skipped = [pair for pair in itertools.pairwise(levels) if pair[1] > pair[0] + 1]
        assert (levels[0], skipped) == (1, []), name_of(page)


def test_every_guide_and_reference_page_is_listed() -> None:
    folders = [page.parent for page in PAGES if page.name == "README.md" and ROOT / "docs" in page.parents]
    assert {folder.name for folder in folders} >= {"decisions", "guides", "reference"}
    for folder in folders:
        linked = {to for to, _ in LINK.findall((folder / "README.md").read_text("utf-8"))}
        assert {page.name for page in folder.glob("*.md")} - linked == {"README.md"}, folder.name


def test_whatever_is_to_be_typed_is_marked_as_such() -> None:
    pages = [page for page in PAGES if GENERATED not in page.parents]
    others = [(page, block.text) for page in pages for block in blocks_of(page) if not block.is_shell]
    assert not [(page, text) for page, text in others if re.search(r"^(\$ |stoker |make )", text, re.MULTILINE)]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_an_example_is_the_same_words_in_bash_and_zsh(page: Path, tmp_path: Path) -> None:
    shells = [shell for shell in ("bash", "zsh") if has(shell)]
    understood = [words_of(shell, to_paste(page), tmp_path) for shell in shells]
    for one in understood:
        assert not one.complaints
        assert one.commands == understood[0].commands
    assert understood[0].commands
    assert not [line for line in _plain_lines(to_paste(page)) if shlex.split(line) not in understood[0].commands]
    if len(shells) < 2:
        pytest.skip(NO_ZSH)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_an_example_is_a_command_that_stoker_takes(page: Path, tmp_path: Path) -> None:
    for words in _stoker_lines(words_of("bash", to_paste(page), tmp_path)):
        _read(words)


def test_the_examples_of_the_help_paste_into_both_shells(tmp_path: Path) -> None:
    examples = [
        example for command in COMMANDS for example in getattr(import_module(command.module), command.grammar).examples
    ]
    examples += [line.strip() for line in top_help().split("try\n")[1].splitlines() if line.startswith("  ")]
    shells = [shell for shell in ("bash", "zsh") if has(shell)]
    understood = [words_of(shell, "\n".join(examples) + "\n", tmp_path) for shell in shells]
    assert [one.complaints for one in understood] == [[]] * len(shells)
    assert understood[0].commands == understood[-1].commands
    lines = _stoker_lines(understood[0])
    assert len(lines) == len(examples)
    for words in lines:
        _read(words)


# Both shells hand programs the same words, as was just seen: it takes two pages to see that zsh runs them, too.
SLOW = [page for page in WITH_RUNS if any(block.is_slow for block in blocks_of(page))]
IN_ZSH = {"README.md", "docs/guides/sweeps.md"}
LIVES = [
    pytest.param(
        *(page, shell),
        id=f"{name_of(page)}-{shell}",
        marks=pytest.mark.slow if page in SLOW or (shell == "zsh" and name_of(page) not in IN_ZSH) else (),
    )
    for page in WITH_RUNS
    for shell in ("bash", "zsh")
]


@pytest.mark.parametrize(("page", "shell"), LIVES)
def test_examples_do_what_their_page_says(page: Path, shell: str, programs: Path, tmp_path: Path) -> None:
    if not has(shell):
        pytest.skip(f"there is no {shell} here")
    blocks = [block for block in blocks_of(page) if block.is_run or block.file]
    wrong = _live_through(shell, blocks, tmp_path / shell, programs)
    assert not wrong, "\n\n".join([*wrong, "what a page shows is written anew by: make docs"])


def _live_through(shell: str, blocks: list[Block], folder: Path, programs: Path) -> list[str]:
    """Run a page's examples; give what went otherwise than the page says."""
    folder.mkdir()
    run = [block for block in blocks if block.is_run]
    wrong = []
    for block, steps in zip(run, live_through(shell, blocks, folder, programs), strict=True):
        if steps[-1].code != block.exit_code:
            wrong.append(f"{shell}: {block.text}ended with {steps[-1].code}: {steps[-1].printed}")
        elif block.language == "bash" and steps[-1].failed != [block.exit_code] * bool(block.exit_code):
            wrong.append(f"{shell}: something failed in\n{block.text}{steps[-1].printed}")
        if block.language == "bash":
            continue
        for typed, ran in zip(block.typed(), steps, strict=True):
            now = told(ran, folder)
            if not agree(typed.printed, now):
                wrong.append(f"{shell}: $ {typed.command}\n{settled(typed.printed)}\n--- now:\n{settled(now)}")
    return wrong


@cache
def _documented_tabular_runs() -> list[str]:
    lines: dict[str, None] = {}
    for page in WITH_EXAMPLES:
        text = to_paste(page)
        lines |= dict.fromkeys(re.findall(r"^stoker run tabular/\S+ [^|\n;']+$", text, re.MULTILINE))
    return [line for line in lines if "data=mine" not in line and "--config" not in line]


@pytest.mark.parametrize("line", _documented_tabular_runs())
def test_a_documented_run_of_a_recipe_could_start(line: str, shell: Shell) -> None:
    words = line.split()[1:]
    (shell.folder / "wine.csv").write_text("a,cultivar\n1,x\n2,y\n")
    done = shell.stoker(*words, *([] if "--dry-run" in words else ["--dry-run"]))
    assert done.code == 0, done.err


def _plain_lines(text: str) -> list[str]:
    """Return the lines in which a shell should find nothing to expand, join or redirect."""
    return [line for line in text.splitlines() if line.startswith("stoker ") and not set(line) & set("$;|&<>")]


def _stoker_lines(understood: Understood) -> list[list[str]]:
    return [words[1:] for words in understood.commands if words[0] == "stoker"]


def _read(words: list[str]) -> None:
    """Read a command line as Stoker would; it complains if there is no such command, option or override."""
    plain, _flags = take_flags(words)
    if not plain or plain[0] == "help":
        return
    command, rest = find_command(expand(plain))
    assert command is not None, f"there is no command: stoker {' '.join(words)}"
    given = getattr(import_module(command.module), command.grammar).parse(rest)
    values = given.get("values", [])
    if given.get("program") is not None and given.get("target"):
        values = [given["target"], *values]
    parse_overrides(values)
