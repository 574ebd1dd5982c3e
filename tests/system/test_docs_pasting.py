"""What the tests of the pages rest on can tell good examples from bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.pages import Block, blocks_of
from tests.system.pasting import has, live_through, words_of
from tests.system.transcripts import agree

needs_zsh = pytest.mark.skipif(not has("zsh"), reason="there is no zsh here")

PAGE = """# A page

```python file=folder/say.py
print("said")
```

```bash run
export NAME=me
cat folder/say.py
```

```console run
$ echo $NAME
me

$ ls nowhere; true
```

```bash run exit=1
false
```
"""


@needs_zsh
@pytest.mark.parametrize(
    "line",
    ["stoker jobs  # all of them", "stoker run models=[gbt,knn]", "stoker run data=~/x", "stoker run ~lr", "stoker ?"],
)
def test_what_does_not_paste_into_both_shells_is_seen(line: str, tmp_path: Path) -> None:
    bash, zsh = (words_of(shell, f"{line}\n", tmp_path) for shell in ("bash", "zsh"))
    assert bash.commands != zsh.commands or zsh.complaints


@needs_zsh
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stoker run 'models=[gbt,knn]' --dry-run", ["stoker", "run", "models=[gbt,knn]", "--dry-run"]),
        ("A=1 stoker run lr=1e-2,1e-3 -- x {lr}", ["stoker", "run", "lr=1e-2,1e-3", "--", "x", "{lr}"]),
        ("stoker run lr=log:1e-3:1:4 '~x'", ["stoker", "run", "lr=log:1e-3:1:4", "~x"]),
        ("stoker run 'title=\"a, b!\"'", ["stoker", "run", 'title="a, b!"']),
    ],
)
def test_what_pastes_is_the_same_words_in_both(line: str, words: list[str], tmp_path: Path) -> None:
    for shell in ("bash", "zsh"):
        understood = words_of(shell, f"{line}\n", tmp_path)
        assert understood.commands == [words]
        assert not understood.complaints


def test_both_ends_of_a_pipe_are_seen(tmp_path: Path) -> None:
    assert words_of("bash", "stoker jobs --json | tail -n 1\n", tmp_path).commands == [
        ["stoker", "jobs", "--json"],
        ["tail", "-n", "1"],
    ]


def test_a_word_that_a_shell_complains_about_is_a_complaint(tmp_path: Path) -> None:
    assert words_of("bash", 'stoker run "a!b"\n', tmp_path).complaints == ["bash: !b: event not found"]


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=needs_zsh)])
def test_a_page_is_lived_through_in_one_session(shell: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    blocks = list(blocks_of(page))
    ((saved,), (named, missing), (failed,)) = live_through(shell, blocks, tmp_path)
    assert (saved.printed, saved.code, saved.failed) == ('print("said")\n', 0, [])
    assert named.printed == "me\n"
    assert "nowhere" in missing.printed
    assert (failed.code, failed.failed) == (1, [1])


def test_a_transcript_is_taken_apart() -> None:
    block = Block(page=Path(), start=0, end=0, language="console", marks=frozenset(), text="$ a\n1\n\n$ b\n$ c\n2\n")
    assert [(one.command, one.printed) for one in block.typed()] == [("a", "1\n\n"), ("b", ""), ("c", "2\n")]


@pytest.mark.parametrize(
    ("page", "truth"),
    [
        ("✓ lr=0.1   0.13s  loss 1  peak 6.9 MiB", "✓ lr=0.1     12s  loss 1  peak 1.2 GiB"),
        (
            "desk: 2 cores, 8 GiB RAM, limit 7 GiB (cgroup1); python = ./x (PATH). 3 trials",
            "vm: 2 GPUs, not used; 64 cores, memory unknown (bare); python = ./x (PATH). 3 trials",
        ),
        ("desk: 2 cores, 8 GiB RAM, no limit (watchdog). 3 trials", "vm: 1 core, memory unknown (bare). 3 trials"),
        ("id 20261115-064127-85d15725", "id 20270101-000000-00000000"),
        ("2 of 3, 683 tokens/s", "2 of 3, 31.5 k tokens/s"),
        ("✓ read  1.0s  ran\n✓ b  9s\n", "  read  11s\n✓ read  14s  ran\n  b train  12s  step 3/6  loss 7\n✓ b  15s\n"),
        (
            "2 adapters, one base, one process: 1\n✓ a  1\n✓ b  2\n1 b\n2 a",
            "2 adapters, one base, one process: 1\n✓ b  2\n✓ a  1\n1 b\n2 a",
        ),
    ],
)
def test_times_sizes_and_machines_may_differ(page: str, truth: str) -> None:
    assert agree(page, truth)


@pytest.mark.parametrize(
    ("page", "truth"),
    [
        ("loss 1", "loss 2"),
        ("3 ok", "3 ok, 1 failed"),
        ("lr=0.1", "lr=0.10"),
        ("exit 1", "exit 3"),
        ("desk: 2 cores, 8 GiB RAM, no limit (bare); python = ./x", "desk: 2 cores, 8 GiB RAM, no limit (bare)"),
        ("a\nb", "a"),
        ("✓ a  1\n✓ b  2\n1 b\n", "✓ b  2\n✓ a  1\n1 b\n"),
    ],
)
def test_anything_else_may_not(page: str, truth: str) -> None:
    assert not agree(page, truth)
