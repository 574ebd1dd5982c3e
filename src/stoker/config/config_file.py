"""One configuration file, YAML or TOML, as a located tree."""

from __future__ import annotations

import os
from typing import Final

from stoker.config.positions import LARGEST_BYTES, MOST_VALUES, LocatedValue, SourceFile, fault_at
from stoker.core.errors import Diagnostic, LocalFile, StokerError
from stoker.core.frozen import changed
from stoker.core.text import nearest
from stoker.host.durable import translated

SUFFIXES: Final = (".yaml", ".yml", ".toml")


def read_config(  # noqa: PLR0913 - how a file is read, and what is known of it
    name: str,
    path: str,
    faults: list[Diagnostic],
    *,
    what: str = "configuration file",
    most_values: int = MOST_VALUES,
    is_placed: bool = True,
    data: bytes | None = None,
) -> tuple[SourceFile, LocatedValue | None]:
    """Read a file, called `name` in messages. Returns None instead of its tree if it can't be read to its end.

    With its `data` no file is read: `path` only tells the language.

    A file that does not exist, or may not be read, is an error at once: there is no line to point at. `what` is the
    type of file it should be. Places of TOML cost as much as all the rest of it; `is_placed` does without.
    """
    if not path.endswith(SUFFIXES) and (data is not None or os.path.exists(path)):
        message = f"can't tell whether {name} is YAML or TOML"
        raise LocalFile(message, hint=f"its name has to end in {' or '.join(SUFFIXES)}", path=name)
    source = _source_of(name, path, _bytes_of(name, path, what) if data is None else data, faults)
    if most_values != MOST_VALUES:
        source = changed(source, most_values=most_values)
    # Each language on use: a job without a file, or with a file of the other one, need not pay for it.
    if path.endswith(".toml"):
        from stoker.config.toml_file import read_toml  # noqa: PLC0415

        tree = read_toml(source, faults, is_placed=is_placed)
    else:
        from stoker.config.yaml_file import read_yaml  # noqa: PLC0415

        tree = read_yaml(source, faults)
    if tree is not None and not tree.is_map:
        if tree.value is not None:
            faults.append(fault_at(source.value_of(tree), f"a {what} is a map of keys and values"))
        tree = LocatedValue({}, 1, 1, 1, 1)
    return source, tree


def options_in(folder: str) -> dict[str, str]:
    """Return the configuration files of a folder by their name without suffix; the first suffix of ours wins."""
    options: dict[str, str] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return options
    for suffix in SUFFIXES:
        for name in names:
            if name.endswith(suffix) and len(name) > len(suffix):
                options.setdefault(name[: -len(suffix)], name)
    return options


def _bytes_of(name: str, path: str, what: str) -> bytes:
    try:
        with translated(name):
            data = _read(path)
    except LocalFile as error:
        if error.data.get("errno") == "ENOENT":
            hint = _near(path) or error.hint
            raise LocalFile(f"there is no {what} {name}", hint=hint, path=name) from None
        raise
    if len(data) > LARGEST_BYTES:
        raise LocalFile(f"{name} is larger than {LARGEST_BYTES >> 20} MiB", hint=f"is it a {what}?", path=name)
    return data


def _read(path: str) -> bytes:
    """Read a file, and at most one byte more than the limit."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # As much as the system reports, and then the rest: a pipe has no size.
        data = os.read(fd, min(os.fstat(fd).st_size, LARGEST_BYTES) + 1)
        while data and len(data) <= LARGEST_BYTES and (more := os.read(fd, LARGEST_BYTES + 1 - len(data))):
            data += more
    finally:
        os.close(fd)
    return data


def _near(path: str) -> str:
    folder = os.path.dirname(path) or "."
    options = options_in(folder)
    files = sorted(options.values())
    # Without suffixes, which are alike in all.
    found = nearest(os.path.splitext(os.path.basename(path))[0], options)
    if found:
        return f"did you mean {os.path.join(os.path.dirname(path), options[found])}?"
    return f"there are: {', '.join(files[:10])}" if files else ""


def _source_of(name: str, path: str, data: bytes, faults: list[Diagnostic]) -> SourceFile:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data[: error.start].decode("utf-8-sig")
        source = _source(name, path, text + "\N{REPLACEMENT CHARACTER}")
        byte = data[error.start]
        faults.append(
            fault_at(source.at_index(len(text)), f"the byte 0x{byte:02x} is not UTF-8", hint="save it as UTF-8")
        )
        text = ""
    return _source(name, path, text)


def _source(name: str, path: str, text: str) -> SourceFile:
    text = text.replace("\r\n", "\n")
    return SourceFile(name=name, path=path, text=text, lines=tuple(text.split("\n")))


class ConfigFiles:
    """The files and folders of one composition by name, each read once. `faults` collects the faults of all of them."""

    def __init__(self, folder: str, faults: list[Diagnostic]) -> None:
        self.faults = faults
        self._folder = os.path.normpath(folder)
        self._files: dict[str, tuple[SourceFile, LocatedValue | None]] = {}
        self._options: dict[str, dict[str, str]] = {}

    @property
    def is_torn(self) -> bool:
        """A file could not be read to its end, so what seems to be missing may be in the rest of it."""
        return any(tree is None for _, tree in self._files.values())

    def take(self, name: str) -> tuple[SourceFile, LocatedValue | None]:
        """Return a file by its name, which is relative to the folder of the composition."""
        taken = self._files.get(name)
        if taken is None:
            path = os.path.join(self._folder, name)
            if ".." in path:
                path = os.path.normpath(path)
            taken = self._files[name] = read_config(name, path, self.faults)
        return taken

    def take_named(self, name: str) -> tuple[SourceFile, LocatedValue | None] | StokerError:
        """Return a file that another one names; the caller places an error of reading it."""
        try:
            return self.take(name)
        except StokerError as error:
            return error

    def find(self, folder: str, name: str) -> str | None:
        """Return the name of the file for a name with or without its suffix; nothing if there is none."""
        for suffix in ("", *SUFFIXES) if name.endswith(SUFFIXES) else SUFFIXES:
            file = os.path.join(folder, name + suffix)
            if file in self._files or os.path.isfile(os.path.join(self._folder, file)):
                return file
        return None

    def options(self, name: str) -> dict[str, str]:
        """Return the configuration files in a folder by their name without suffix."""
        options = self._options.get(name)
        if options is None:
            options = self._options[name] = options_in(os.path.join(self._folder, name))
        return options
