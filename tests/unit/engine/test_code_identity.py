from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.engine.code_identity import OWN, CodeIdentity, digest_of_syntax

SOURCES = Path(__file__).parents[3] / "src"
_names = (f"project_{number}" for number in itertools.count())

STAGE = '''
"""A stage's module."""

import math
from dataclasses import dataclass

from {package}.helping import scale
from {package} import limits

RATE = 0.5


def decorate(function):
    return function


@decorate
def train(rows, depth=3):
    """Train."""
    if depth > limits.DEEPEST:
        raise ValueError("too deep")
    # as fast as can be
    return [scale(row) * RATE for row in rows]
'''


def in_a_minute() -> FakeClock:
    return FakeClock(SystemClock().wall_s() + 60)


class Project:
    """A package of its own below a folder, imported as a user's would be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = next(_names)
        # In a folder of its own: a new file beside the code makes everything be looked at again.
        (folder / "state").mkdir()
        self.memo = folder / "state" / "code.json"
        self.write("__init__.py", "")
        self.write("helping.py", "def scale(x):\n    return x * 2\n")
        self.write("limits.py", "DEEPEST = 64\n")
        self.write("unused.py", "ANYTHING = 1\n")
        self.write("stage.py", STAGE.format(package=self.package))
        self.load("stage")

    def path(self, name: str) -> Path:
        return self.folder / self.package / name

    def write(self, name: str, text: str) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.path(name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def load(self, module: str) -> None:
        importlib.invalidate_caches()
        importlib.import_module(f"{self.package}.{module}")

    def code(self, module: str = "stage") -> dict[str, str]:
        """As a new process would find it in a minute: only what is on disk is remembered."""
        identity = CodeIdentity(str(self.memo), clock=in_a_minute())
        found = identity.modules_of(f"{self.package}.{module}")
        identity.save()
        return found


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    sys.path.insert(0, str(tmp_path))
    writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield Project(tmp_path)
    finally:
        sys.dont_write_bytecode = writing
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.startswith("project_")]:
            del sys.modules[name]


# --- what counts ---------------------------------------------------------------------------------


def test_a_stage_is_its_module_and_the_first_party_modules_that_this_imports(project: Project) -> None:
    package = project.package
    assert set(project.code()) == {OWN, package, f"{package}.helping", f"{package}.limits"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# as fast as can be", "# slower, with more words"),
        ("    # as fast as can be\n", ""),
        ('"""Train."""', '"""Train well.\n\n    With a second paragraph."""'),
        ('    """Train."""\n', ""),
        ('"""A stage\'s module."""', ""),
        ("RATE = 0.5", "\n\n\nRATE   =   0.5"),
        ('raise ValueError("too deep")', "raise ValueError(\n            'too deep'\n        )"),
        (
            "return [scale(row) * RATE for row in rows]",
            "return [\n        scale(row) * RATE\n        for row in rows\n    ]",
        ),
    ],
)
def test_what_does_not_change_the_work_does_not_count(project: Project, old: str, new: str) -> None:
    before = project.code()
    project.edit("stage.py", old, new)
    assert project.code() == before


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("stage.py", "* RATE for", "+ RATE for", OWN),
        ("stage.py", "RATE = 0.5", "RATE = 0.25", OWN),
        ("stage.py", "depth=3", "depth=4", OWN),
        ("stage.py", "@decorate\n", "", OWN),
        ("stage.py", "return function", "return lambda *given: None", OWN),
        ("stage.py", '"too deep"', '"too shallow"', OWN),
        ("stage.py", "def train(rows, depth=3)", "def train(rows: list, depth=3)", OWN),
        ("helping.py", "x * 2", "x * 3", "helping"),
        ("limits.py", "64", "65", "limits"),
        ("__init__.py", "", "EVERYWHERE = 1\n", ""),
    ],
)
def test_what_changes_the_work_counts(project: Project, file: str, old: str, new: str, changed: str) -> None:
    before = project.code()
    project.edit(file, old, new) if old else project.write(file, new)
    after = project.code()
    names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    expected = OWN if changed == OWN else f"{project.package}.{changed}".rstrip(".")
    assert names == {expected}


def test_a_module_that_nobody_imports_does_not_count(project: Project) -> None:
    before = project.code()
    project.edit("unused.py", "1", "2")
    assert project.code() == before


def test_what_an_imported_module_imports_counts(project: Project) -> None:
    project.write("deeper.py", "FACTOR = 2\n")
    project.edit(
        "helping.py", "def scale(x):\n    return x * 2", "def scale(x):\n    from .deeper import FACTOR\n    return x"
    )
    before = project.code()
    assert f"{project.package}.deeper" in before
    project.edit("deeper.py", "2", "3")
    assert project.code() != before


def test_modules_that_import_each_other_count_once(project: Project) -> None:
    project.edit("helping.py", "def scale", f"import {project.package}.stage\n\ndef scale")
    assert len(project.code()) == 4


def test_third_party_code_does_not_count(project: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "project_lib.py").write_text("X = 1\n")
    sys.path.append(str(elsewhere))
    try:
        project.edit("stage.py", "import math", "import math\nimport json\nimport project_lib")
        before = project.code()
        assert not any("project_lib" in name or "json" in name for name in before)
        (elsewhere / "project_lib.py").write_text("X = 2\n")
        assert project.code() == before
    finally:
        sys.path.remove(str(elsewhere))


def test_an_installed_cookbook_is_its_own_package_only(project: Project, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(tmp_path / project.package, site / "project_installed")
    for path in (site / "project_installed").glob("*.py"):
        path.write_text(path.read_text().replace(project.package, "project_installed"))
    (site / "project_other.py").write_text("X = 1\n")
    text = (site / "project_installed" / "stage.py").read_text()
    (site / "project_installed" / "stage.py").write_text(
        text.replace("import math", "import math\nimport project_other")
    )
    sys.path.insert(0, str(site))
    try:
        importlib.invalidate_caches()
        importlib.import_module("project_installed.stage")
        found = CodeIdentity(str(tmp_path / "memo.json")).modules_of("project_installed.stage")
    finally:
        sys.path.remove(str(site))
    assert "project_installed.helping" in found
    assert "project_other" not in found


def test_the_engine_is_no_part_of_a_shipped_cookbook() -> None:
    importlib.import_module("stoker.cookbooks.tabular.data")
    found = CodeIdentity("/nowhere/code.json").modules_of("stoker.cookbooks.tabular.data")
    assert OWN in found
    assert {name for name in found if name != OWN and not name.startswith("stoker.cookbooks.tabular")} == set()
    assert any(name.startswith("stoker.cookbooks.tabular") for name in found)


def test_of_comparisons_only_their_package_is_code() -> None:
    importlib.import_module("stoker.crossval.parity_stages")
    found = CodeIdentity("/nowhere/code.json").modules_of("stoker.crossval.parity_stages")
    assert {name for name in found if name != OWN and not name.startswith("stoker.crossval")} == set()
    assert "stoker.crossval.measures" in found


# --- moving --------------------------------------------------------------------------------------


def test_a_project_may_be_moved_to_another_folder(project: Project, tmp_path: Path) -> None:
    before = project.code()
    other = tmp_path / "moved"
    shutil.move(tmp_path / project.package, other / project.package)
    sys.path[sys.path.index(str(tmp_path))] = str(other)
    try:
        for name in [name for name in sys.modules if name.startswith(project.package)]:
            del sys.modules[name]
        project.folder = other
        project.load("stage")
        assert project.code() == before
    finally:
        sys.path[sys.path.index(str(other))] = str(tmp_path)


def test_a_stages_own_module_may_be_renamed(project: Project) -> None:
    before = project.code()
    project.path("stage.py").rename(project.path("training.py"))
    project.load("training")
    assert project.code("training") == before


# --- what is found -------------------------------------------------------------------------------


def test_a_package_goes_before_a_module_of_its_name(project: Project) -> None:
    before = project.code()
    project.write("helping/__init__.py", "def scale(x):\n    return x * 100\n")
    assert project.code() != before


def test_a_new_file_that_would_be_found_first_is_noticed(project: Project) -> None:
    project.edit("stage.py", "import math", f"import math\nimport {project.package}_extra")
    before = project.code()
    (project.folder / f"{project.package}_extra.py").write_text("X = 1\n")
    after = project.code()
    assert set(after) - set(before) == {f"{project.package}_extra"}


def test_a_new_file_in_a_folder_without_an_init_is_noticed(project: Project) -> None:
    (project.folder / project.package / "plain").mkdir()
    project.edit("stage.py", "import math", f"import math\nfrom {project.package}.plain import later")
    before = project.code()
    project.write("plain/later.py", "X = 1\n")
    assert set(project.code()) - set(before) == {f"{project.package}.plain.later"}


def test_code_that_this_python_cant_read_counts_byte_by_byte(project: Project) -> None:
    project.edit("stage.py", "import math", f"import math\nif 0: import {project.package}.ancient")
    project.write("ancient.py", "print 'hello'  # one\n")
    before = project.code()
    project.write("ancient.py", "print 'hello'  # two\n")
    assert project.code()[f"{project.package}.ancient"] != before[f"{project.package}.ancient"]


def test_a_sum_of_thousands_of_terms_has_an_identity_too(project: Project) -> None:
    project.write("limits.py", "DEEPEST = " + " + ".join(["1"] * 3000) + "\n")
    before = project.code()
    project.write("limits.py", "DEEPEST = " + " + ".join(["1"] * 2999 + ["2"]) + "\n")
    assert project.code() != before


def test_a_module_without_a_file_has_no_identity() -> None:
    with pytest.raises(TypeError, match="has no source file"):
        CodeIdentity("/nowhere").modules_of("builtins")


# --- the memo ------------------------------------------------------------------------------------


def test_what_is_remembered_is_not_read_again(project: Project) -> None:
    before = project.code()
    stage, folder = project.path("stage.py"), project.path("")
    times = [(path, os.stat(path)) for path in (stage, folder)]
    memo = json.loads(project.memo.read_text())
    (entry,) = memo["modules"].values()
    entry["code"][OWN] = "remembered"
    project.memo.write_text(json.dumps(memo))
    assert project.code()[OWN] == "remembered"
    for path, info in times:
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    assert project.code() == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 3, "modules": {"M": 5}}'])
def test_a_damaged_memo_costs_only_time(project: Project, text: str) -> None:
    before = project.code()
    project.memo.write_text(text.replace("M", f"{project.package}.stage"))
    assert project.code() == before


@pytest.mark.parametrize("entry", [{"stamps": 5}, {"stamps": {}, "code": 7}, {"stamps": {}}, {"stamps": {"/none": []}}])
def test_a_damaged_entry_costs_only_time(project: Project, entry: dict[str, object]) -> None:
    before = project.code()
    module = f"{project.package}.stage"
    body = {"format": 3, "modules": {module: {"file": str(project.path("stage.py")), **entry}}}
    project.memo.write_text(json.dumps(body))
    assert project.code() == before


def test_code_that_was_edited_a_moment_ago_is_not_remembered(project: Project) -> None:
    identity = CodeIdentity(str(project.memo))
    identity.modules_of(f"{project.package}.stage")
    identity.save()
    assert not project.memo.exists()


def test_code_is_looked_at_once_until_it_is_forgotten(project: Project) -> None:
    identity, module = CodeIdentity(str(project.memo)), f"{project.package}.stage"
    before = identity.modules_of(module)
    assert not identity.is_changed(module)
    project.edit("limits.py", "64", "65")
    assert identity.modules_of(module) == before
    assert identity.is_changed(module)
    identity.forget(module)
    assert identity.modules_of(module) != before


def test_sources_are_the_texts_that_were_digested_or_none(project: Project) -> None:
    for clock in (SystemClock(), in_a_minute()):
        identity, module = CodeIdentity(str(project.memo), clock=clock), f"{project.package}.stage"
        identity.modules_of(module)
        sources = identity.sources_of(module)
        assert sources is not None
        texts = {one.path: one.text for one in sources if one.text is not None}
        assert texts == {str(path): path.read_bytes() for path in map(Path, texts)}
        assert len(texts) == len(project.code())
        assert f"{project.package}.helping.scale" in {one.module for one in sources if one.text is None}
        project.edit("helping.py", "return", "return 0 +")
        assert identity.sources_of(module) is None


def test_a_comment_more_is_still_the_text_that_was_digested(project: Project) -> None:
    identity, module = CodeIdentity(str(project.memo)), f"{project.package}.stage"
    identity.modules_of(module)
    project.edit("helping.py", "return", "# why\n    return")
    assert identity.sources_of(module) is not None


def test_a_memo_that_cant_be_written_costs_only_time(project: Project) -> None:
    identity = CodeIdentity("/proc/none/code.json")
    assert identity.modules_of(f"{project.package}.stage")
    identity.save()


# --- other versions of Python --------------------------------------------------------------------

SYNTAX = '''
"""Everything that newer versions of Python parse in another way."""
from __future__ import annotations
import asyncio, functools as ft
text = f"{1!r:>{10}} {'nested'} {{}} {1 + 1=}" "and" f"{'x'}"
empty = f"" f"{''}"
spec = f"{1.5:}" f"{2:{3}.{4}}"
odd = "\\N{SNOWMAN}", "\U0001fae8", "ä", b"\\xff", 1_000, 0x10, 1j, 1e400, ...
class Base(object, metaclass=type):
    x: int = 3
async def go(a, /, b=1, *c, d: "int" = 2, **e) -> None:
    """Docstring."""
    async with asyncio.timeout(1) as x, y: pass
    async for z in x: yield z
    await x
def match_it(value, *, k=None):
    match value:
        case {"a": [1, *rest], **more} if rest: return more
        case Point(x=0) | None: ...
        case str() as text: return (text := text[1:])
    try:
        raise ExceptionGroup("g", [ValueError()])
    except* ValueError: pass
    with (open(1) as a, open(2) as b): pass
    return lambda *args, **kw: [x for x in args if x for y in x]
del x, y[0], z.w
choice = not -1 ** ~2 @ 3 // 4 < 5 <= 6 is not 7 in [8] if 9 else {**{}, "k": {*()}}
'''


def interpreters() -> list[str]:
    found = {}
    versions = Path.home() / ".pyenv" / "versions"
    for minor in (11, 12, 13, 14):
        on_path = shutil.which(f"python3.{minor}")
        for candidate in (*(str(path) for path in sorted(versions.glob(f"3.{minor}.*/bin/python3"))), on_path):
            if candidate is None or minor in found:
                continue
            asked = subprocess.run(
                [candidate, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True, check=False
            )
            if asked.stdout.strip() == str(minor):
                found[minor] = candidate
    return list(found.values())


def test_code_has_the_same_identity_on_every_version_of_python(tmp_path: Path) -> None:
    others = interpreters()
    if len(others) < 2:
        pytest.skip("only one version of Python here")
    (tmp_path / "syntax.py").write_text(SYNTAX)
    files = [str(tmp_path / "syntax.py"), *sorted(map(str, (SOURCES / "stoker" / "cookbooks").rglob("*.py")))]
    (tmp_path / "files.json").write_text(json.dumps(files))
    script = (
        f"import ast, json, sys; sys.path.insert(0, {str(SOURCES)!r})\n"
        "from stoker.engine.code_identity import digest_of_syntax\n"
        "print(json.dumps([digest_of_syntax(ast.parse(open(p, 'rb').read())) for p in json.load(open('files.json'))]))"
    )
    answers = [
        json.loads(subprocess.run([python, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout)
        for python in others
    ]
    for answer in answers[1:]:
        different = [file for file, one, other in zip(files, answers[0], answer, strict=True) if one != other]
        assert different == []


def test_every_piece_of_syntax_counts() -> None:
    pieces = [
        "x = 1",
        "x = 1.0",
        "x = '1'",
        "x = b'1'",
        "x = True",
        "x = None",
        "x: int",
        "def f(): pass",
        "def f(): return",
    ]
    pieces += ["def f(): return None", "x = [1]", "x = [[1]]", "x = (1,)", "f(a=1)", "f(**a)", "f(*a)", "class C: pass"]
    pieces += [
        "f'{x}'",
        "f'{x!r}'",
        "f'{x:}'",
        "{**a}",
        "{a: a}",
        "a.b = 1",
        "a[b] = 1",
        "async def f(): pass",
        "x = ()",
    ]
    pieces += ["import a", "import a as b", "from a import b", "from . import b", "x = 'a' 'b'", "x = 'a', 'b'", "x"]
    digests = [digest_of_syntax(ast.parse(piece)) for piece in pieces]
    assert len(set(digests)) == len(pieces)
