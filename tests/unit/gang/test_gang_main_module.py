from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stoker.core.errors import BadCall
from stoker.gang.rank_messages import call_message, main_of, prepare_main
from tests.unit.host.real_processes import code_of, fork

SCRIPT = "def work():\n    return 41 + 1\nif __name__ == '__main__':\n    raise SystemExit('it ran')\n"


def a_main(**attributes) -> ModuleType:
    main = ModuleType("__main__")
    for name, value in attributes.items():
        setattr(main, name, value)
    return main


def test_a_script_is_had_by_its_path_and_a_module_by_its_name():
    assert main_of(a_main(__file__="/x/train.py")) == ("init_main_from_path", "/x/train.py")
    spec = type("Spec", (), {"name": "pkg.__main__"})()
    assert main_of(a_main(__spec__=spec, __file__="/x/pkg/__main__.py")) == ("init_main_from_name", "pkg.__main__")


def test_what_was_typed_at_a_prompt_cannot_be_had():
    assert main_of(a_main()) is None
    assert main_of(None) is None


def test_a_function_typed_at_a_prompt_is_refused(monkeypatch):
    def work():
        pass

    work.__module__, work.__qualname__ = "__main__", "work"
    monkeypatch.setitem(sys.modules, "__main__", a_main(work=work))
    with pytest.raises(BadCall, match="work is defined where ranks can't import it from"):
        call_message(work, ())


def test_a_script_is_imported_without_being_run_again(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def child():
        main = ("init_main_from_path", str(tmp_path / "train.py"))
        prepare_main(main)
        prepare_main(main)
        assert sys.modules["__main__"].work() == 42

    assert code_of(fork(child)) == 0
