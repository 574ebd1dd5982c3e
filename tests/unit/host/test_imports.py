"""Which text of a source this process imports, whatever becomes of the file."""

from __future__ import annotations

import importlib
import itertools
import os
import py_compile
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from stoker.host import import_watch
from stoker.host.import_watch import (
    ModuleSource,
    handed_on,
    import_only,
    is_imported_from,
    pin,
    read_source,
    received,
    watch_imports,
    watching,
)

FAR_NS = 10**19
_names = (f"pinned_{number}" for number in itertools.count())


class Module:
    """One module of its own below a folder that is on the path."""

    def __init__(self, folder: Path) -> None:
        self.name = next(_names)
        self.path = folder / f"{self.name}.py"
        self.write(1)

    def write(self, text: int) -> None:
        self.path.write_text(f"TEXT = {text}\n")

    def source(self, now_ns: int = FAR_NS) -> ModuleSource:
        return read_source(self.name, str(self.path), now_ns=now_ns)

    def text(self) -> int:
        importlib.invalidate_caches()
        text: int = importlib.import_module(self.name).TEXT
        return text


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Module]:
    watch_imports()
    sys.path.insert(0, str(tmp_path))
    made = Module(tmp_path)
    watches = import_watch._watches.copy()
    yield made
    # `import_only` is for processes of their own: it watches until they end.
    import_watch._watches[:], import_watch._process[:] = watches, []
    sys.path.remove(str(tmp_path))
    sys.modules.pop(made.name, None)


def test_a_pinned_module_is_imported_from_its_text_after_an_edit(module: Module) -> None:
    pin([module.source()])
    module.write(2)
    assert module.text() == 1


def test_a_pinned_module_whose_file_is_as_it_was_is_imported_from_the_file(module: Module) -> None:
    source = module.source()
    pin([source])
    assert (module.text(), is_imported_from(source)) == (1, True)


def test_bytecode_older_than_the_source_is_removed_and_not_run(module: Module) -> None:
    second_s = int(os.stat(module.path).st_mtime)
    os.utime(module.path, (second_s, second_s))
    py_compile.compile(str(module.path), doraise=True)
    module.write(2)
    os.utime(module.path, (second_s, second_s))
    pin([module.source()])
    assert module.text() == 2
    assert not os.path.exists(cache_from_source(str(module.path))) or not sys.dont_write_bytecode


def test_bytecode_that_was_written_long_after_the_source_is_used(module: Module) -> None:
    bytecode = Path(py_compile.compile(str(module.path), doraise=True) or "")
    bytecode.write_bytes(bytecode.read_bytes().replace(b"TEXT", b"TUXT"))
    os.utime(bytecode, (os.stat(module.path).st_mtime + 60,) * 2)
    pin([module.source()])
    importlib.invalidate_caches()
    assert importlib.import_module(module.name).TUXT == 1


def test_an_import_is_told_apart_from_a_later_text(module: Module) -> None:
    assert module.text() == 1
    assert is_imported_from(module.source())
    module.write(2)
    assert not is_imported_from(module.source())


def test_a_source_that_changed_a_moment_ago_has_no_stamp_that_proves_anything(module: Module) -> None:
    changed_ns = os.stat(module.path).st_ctime_ns
    assert module.source(changed_ns + 1).stamp is None
    assert module.source(changed_ns + 3 * 10**9).stamp is not None


def test_what_was_imported_from_another_text_is_imported_anew(module: Module) -> None:
    assert module.text() == 1
    module.write(2)
    import_only([module.source()])
    assert module.text() == 2


def test_what_was_imported_from_the_same_text_stays(module: Module) -> None:
    assert module.text() == 1
    before = sys.modules[module.name]
    import_only([module.source()])
    assert sys.modules[module.name] is before


def test_a_module_that_was_absent_stays_absent(module: Module) -> None:
    pin([ModuleSource(module.name, str(module.path).removesuffix(".py"), None, None)])
    with pytest.raises(ModuleNotFoundError, match="there is one since this work began"):
        module.text()


def test_another_place_that_comes_first_on_the_path_still_does(module: Module, tmp_path: Path) -> None:
    pin([module.source()])
    first = tmp_path / "first"
    first.mkdir()
    (first / module.path.name).write_text("TEXT = 7\n")
    sys.path.insert(0, str(first))
    try:
        assert module.text() == 7
    finally:
        sys.path.remove(str(first))


def test_sources_are_handed_on_as_they_are(module: Module) -> None:
    sources = [module.source(), ModuleSource("absent", "/nowhere/absent", None, None)]
    with handed_on(sources) as descriptor:
        assert received(os.dup(descriptor)) == sources


def test_a_watch_is_used_again_and_has_nothing_noted_then(module: Module, tmp_path: Path) -> None:
    other = Module(tmp_path)
    watched, next_watched = (module.source(),), (other.source(),)
    with watching(watched) as first:
        module.path.read_bytes()
        module.write(12)
        assert first.may_have_run_other_code()
    with watching(next_watched) as second:
        assert second is first
        # A change that opens nothing.
        os.utime(other.path, (1, 1))
        module.path.read_bytes()
        assert not second.may_have_run_other_code()
        other.path.read_bytes()
        assert second.may_have_run_other_code()


def test_watches_at_the_same_time_are_separate(module: Module) -> None:
    watched = (module.source(),)
    with watching(watched) as first:
        module.path.read_bytes()
        module.write(12)
        with watching(watched) as second:
            assert first.may_have_run_other_code()
            assert not second.may_have_run_other_code()


def test_an_installed_module_counts_as_imported_a_moment_after_it_was_installed_or_linked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_imports()
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    installed = Module(packages)
    assert installed.text() == 1
    assert is_imported_from(installed.source(now_ns=0)), "too new for its times to prove anything"
    os.link(installed.path, tmp_path / "another_environment.py")
    assert is_imported_from(installed.source(now_ns=0)), "a further link changes the ctime alone"
    installed.path.write_text("TEXT = 12\n")
    assert not is_imported_from(installed.source(now_ns=0))
    sys.modules.pop(installed.name)
