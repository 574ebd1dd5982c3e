"""Composing made short for tests: files by name, words, and a schema of a few plain types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from stoker.config.compose import ComposedConfig, compose
from stoker.config.values import NOTHING, DeclaredLeaf, Schema
from stoker.core.errors import Diagnostic, InvalidConfig
from tests.fakes.overrides import parse_overrides

FREE = Schema(leaves={}, is_open=True)


def closed(**leaves: DeclaredLeaf) -> Schema:
    """A closed schema; two underscores in a name stand for a dot."""
    named = {name.replace("__", "."): leaf for name, leaf in leaves.items()}
    return Schema(leaves={path: _named(leaf, path) for path, leaf in named.items()})


def real(default: Any = NOTHING, *, runtime: bool = False) -> DeclaredLeaf:
    return _declared(float, _check_real, "float", default, runtime)


def whole(default: Any = NOTHING, *, runtime: bool = False) -> DeclaredLeaf:
    return _declared(int, _check_whole, "int", default, runtime)


def text(default: Any = NOTHING, *, runtime: bool = False) -> DeclaredLeaf:
    return _declared(str, _check_text, "text", default, runtime)


def texts(default: Any = NOTHING) -> DeclaredLeaf:
    return _declared(_read_texts, _check_texts, "list of text", default, runtime=False)


def reals(default: Any = NOTHING) -> DeclaredLeaf:
    return _declared(_read_map, _check_reals, "map of float", default, runtime=False)


class Desk:
    """A folder with configuration files, and what is composed from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, **files: str) -> Desk:
        """Write files: `model__small` is model/small.yaml, `base_toml` is base.toml."""
        for name, content in files.items():
            plain = name.removesuffix("_toml")
            path = self.folder / (plain.replace("__", "/") + (".toml" if name.endswith("_toml") else ".yaml"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(content), encoding="utf-8")
        return self

    def compose(
        self,
        *words: str,
        files: Sequence[str] = ("config.yaml",),
        schema: Schema = FREE,
        env: Mapping[str, str] | None = None,
    ) -> ComposedConfig:
        return compose(files, parse_overrides(words), schema, env or {}, str(self.folder))

    def values(self, *words: str, **more: Any) -> dict[str, Any]:
        return self.compose(*words, **more).values

    def faults(self, *words: str, **more: Any) -> tuple[Diagnostic, ...]:
        with pytest.raises(InvalidConfig) as caught:
            self.compose(*words, **more)
        assert caught.value.exit_code == 21
        return caught.value.faults

    def fault(self, *words: str, **more: Any) -> Diagnostic:
        """The one fault that there is."""
        (fault,) = self.faults(*words, **more)
        return fault


def _declared(
    read: Callable[[str], Any], check: Callable[[Any], Any], says: str, default: Any, runtime: bool
) -> DeclaredLeaf:
    return DeclaredLeaf(
        path="", read=lambda word: check(read(word)), check=check, says=says, default=default, is_runtime=runtime
    )


def _named(leaf: DeclaredLeaf, path: str) -> DeclaredLeaf:
    return DeclaredLeaf(
        path=path, read=leaf.read, check=leaf.check, says=leaf.says, default=leaf.default, is_runtime=leaf.is_runtime
    )


def _check_real(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def _check_whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _check_text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected text, got {value!r}")
    return value


def _read_texts(word: str) -> list[str]:
    return [part.strip() for part in word.strip("[]").split(",") if part.strip()]


def _check_texts(value: Any) -> list[str]:
    if type(value) is not list:
        raise ValueError(f"expected a list, got {value!r}")
    return [_check_text(item) for item in value]


def _read_map(word: str) -> dict[str, float]:
    raise ValueError(f"{word} can't be read as a map")


def _check_reals(value: Any) -> dict[str, float]:
    if type(value) is not dict:
        raise ValueError(f"expected a map, got {value!r}")
    return {key: _check_real(item) for key, item in value.items()}
