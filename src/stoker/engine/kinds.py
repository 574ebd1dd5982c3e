"""Kinds: the nominal, versioned types of artifacts, each with its codec and its validator.

A kind is a class; an instance is a handle on one artifact of it: digest and path, never the value. Two kinds are the
same only if name and version are; there is no conversion but a stage that does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from stoker.core.digests import Digest, KindRef
from stoker.core.jsontext import dumps, loads

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


class Kind(Generic[T]):
    """An artifact of a kind. Subclass to declare one; `file` names its single file, None means a folder."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    __slots__ = ("_where", "digest")

    def __init__(self, digest: Digest, where: Callable[[], str] | str) -> None:
        self.digest = digest
        self._where = where

    @classmethod
    def ref(cls) -> KindRef:
        """Return the kind's name and version."""
        return KindRef(cls.name, cls.version)

    @classmethod
    def save(cls, value: T, path: Path) -> None:
        """Write a value: to the file `path`, or into the empty folder `path`."""
        message = f"kind {cls.name} has no codec: write below job.out and give job.made({cls.__name__})"
        raise NotImplementedError(message)

    def load(self) -> T:
        """Read the value back."""
        message = f"kind {type(self).name} has no codec: read below .path"
        raise NotImplementedError(message)

    @classmethod
    def validate(cls, path: Path) -> None:
        """Raise `ValueError` with the reason if the bytes at `path` are not of this kind. Cheap."""

    @property
    def path(self) -> Path:
        """The artifact's file, or its folder. Read-only."""
        folder = self._where if isinstance(self._where, str) else self._where()
        return self.path_in(folder)

    @classmethod
    def path_in(cls, folder: str) -> Path:
        """Return where an artifact of this kind lies that a folder holds: its file, or the folder."""
        from pathlib import Path  # noqa: PLC0415 - milliseconds that a cached run never needs

        return Path(folder, cls.file) if cls.file else Path(folder)

    @classmethod
    def check_folder(cls, folder: str) -> None:
        """Raise `ValueError` unless a staging folder holds exactly what this kind promises, valid."""
        if cls.file is not None:
            found = sorted(os.listdir(folder))
            if found != [cls.file]:
                message = f"expected the single file {cls.file}, found {', '.join(found) or 'nothing'}"
                raise ValueError(message)
        cls.validate(cls.path_in(folder))

    @classmethod
    def at(cls, folder: str) -> Self:
        """Return a handle on an artifact that is still in staging and has no digest yet."""
        return cls(Digest(""), folder)

    @property
    def staged_in(self) -> str:
        """The staging folder of an artifact that has no digest yet; empty for one that is in the store."""
        return self._where if isinstance(self._where, str) and not self.digest else ""


class JsonKind(Kind[Any]):
    """A kind whose value is JSON; non-finite numbers are kept."""

    file = "value.json"

    @classmethod
    def save(cls, value: Any, path: Path) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(dumps(value))

    def load(self) -> Any:
        with open(self.path, "rb") as file:
            return loads(file.read())

    @classmethod
    def validate(cls, path: Path) -> None:
        with open(path, "rb") as file:
            loads(file.read())


class TextKind(Kind[str]):
    """A kind whose value is UTF-8 text."""

    file = "value.txt"

    @classmethod
    def save(cls, value: str, path: Path) -> None:
        path.write_text(value, encoding="utf-8", newline="")

    def load(self) -> str:
        return self.path.read_bytes().decode()


class TreeKind(Kind["Path"]):
    """A kind that is a folder; its value is the folder's path."""

    def load(self) -> Path:
        return self.path


def check_files(folder: Path, *names: str) -> None:
    """Raise `ValueError` unless a folder holds these files."""
    for name in names:
        if not (folder / name).is_file():
            message = f"{name} is missing"
            raise ValueError(message)


def check_json(path: Path, key: str) -> None:
    """Raise `ValueError` unless a file is a JSON object that has a key."""
    try:
        value = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path.name}: {error}"
        raise ValueError(message) from error
    if not isinstance(value, dict) or key not in value:
        message = f"{path.name} has no {key!r}"
        raise ValueError(message)
