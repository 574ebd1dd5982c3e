from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stoker.core.errors import BadGang, ProgramNotFound
from stoker.gang.script_boot import CODE, FILE, MODULE
from stoker.gang.scripts import OwnPython, Script, check_ranks, needs_libraries, read_script

ENV = {"PATH": os.defpath}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import os\n")
    return tmp_path


def read(folder: Path, *words: str) -> Script:
    return read_script(words, folder=str(folder), environment=ENV)


@pytest.mark.parametrize(
    ("words", "how", "what", "args", "options"),
    [
        (["train.py", "-x", "1"], FILE, "train.py", ("-x", "1"), ()),
        (["-u", "train.py"], FILE, "train.py", (), ("-u",)),
        (["-m", "pack.train", "-m"], MODULE, "pack.train", ("-m",), ()),
        (["-mpack"], MODULE, "pack", (), ()),
        (["-um", "pack", "a"], MODULE, "pack", ("a",), ("-u",)),
        (["-c", "print(1)", "b"], CODE, "print(1)", ("b",), ()),
        (["-W", "error", "-Xdev", "-OO", "train.py"], FILE, "train.py", (), ("-W", "error", "-Xdev", "-OO")),
    ],
)
def test_the_words_of_an_interpreter_are_split_as_it_would(folder, words, how, what, args, options):
    script = read(folder, sys.executable, *words)
    assert (script.how, script.what, script.args, script.argv[1:]) == (how, what, args, options)


@pytest.mark.parametrize("words", [[], ["-V"], ["-"], ["--help"], ["-i", "train.py"], ["-m"]])
def test_an_interpreter_that_is_asked_something_else_is_a_program(folder, words):
    script = read(folder, sys.executable, *words)
    assert not script.how
    assert script.argv == (sys.executable, *words)


def test_only_our_own_interpreter_without_options_is_forked_from(folder, tmp_path):
    assert read(folder, sys.executable, "-u", "train.py").is_own
    assert not read(folder, sys.executable, "-O", "train.py").is_own
    link = tmp_path / "python"
    link.symlink_to(os.path.realpath(sys.executable))
    if sys.prefix != sys.base_prefix:
        # The same file outside our environment has other libraries.
        assert not read(folder, str(link), "train.py").is_own
        assert not OwnPython(prefix=sys.base_prefix).is_it(sys.executable)


def test_any_other_program_is_found_and_gets_its_words_with_the_local_rank_filled_in(folder):
    script = read(folder, "sh", "-c", "echo ${local_rank} x")
    assert os.path.isabs(script.argv[0])
    assert script.words(3)[1:] == ["-c", "echo 3 x"]
    assert script.order(3, 4) is None


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ([sys.executable, "trian.py"], "there is no script trian.py", "train.py"),
        ([sys.executable, "."], "is a folder without a __main__.py", "name the script"),
        ([sys.executable, "/dev/null"], "/dev/null is no file that every rank could read", "as a file"),
        (["train.py"], "there is no program train.py", "-- python train.py"),
        (["./train.py"], "is not executable", "-- python ./train.py"),
        ([""], "name is empty", "python"),
    ],
)
def test_what_is_not_there_is_told_with_what_may_be_meant(folder, words, said, hint):
    with pytest.raises(ProgramNotFound, match=said) as caught:
        read(folder, *words)
    assert hint in caught.value.hint


@pytest.mark.parametrize("nranks", [0, -1, 1025, 10_000])
def test_a_number_of_ranks_that_can_not_be_is_refused(nranks):
    with pytest.raises(BadGang) as caught:
        check_ranks(nranks)
    assert "1,024" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, sys\nfrom collections import abc\n", False),
        ("import torch\n", True),
        ("def f():\n    from mine.data import load\n", True),
        ("from . import x\n", True),
        ("what is this", False),
    ],
)
def test_a_script_needs_libraries_if_it_imports_more_than_the_standard_one(tmp_path, source, expected):
    (tmp_path / "a.py").write_text(source)
    assert needs_libraries(read(tmp_path, sys.executable, "a.py"), str(tmp_path)) is expected
    assert needs_libraries(read(tmp_path, sys.executable, "-c", source), str(tmp_path)) is expected
