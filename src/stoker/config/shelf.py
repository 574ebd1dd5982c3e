"""The files of one composition: each is read once, however often it is named."""

from __future__ import annotations

import os

from stoker.config.config_file import SUFFIXES, options_in, read_config
from stoker.config.located import Located, Source
from stoker.model.errors import StokerError
from stoker.model.faults import Fault


class Shelf:
    """Files and folders by their name. `faults` collects what is wrong with any of them."""

    def __init__(self, folder: str, faults: list[Fault]) -> None:
        self.faults = faults
        self._folder = os.path.normpath(folder)
        self._files: dict[str, tuple[Source, Located | None]] = {}
        self._options: dict[str, dict[str, str]] = {}

    @property
    def is_torn(self) -> bool:
        """A file could not be read to its end, so what seems to be missing may stand in the rest of it."""
        return any(tree is None for _, tree in self._files.values())

    def take(self, name: str) -> tuple[Source, Located | None]:
        """Give a file by its name, which is relative to the folder of the composition."""
        taken = self._files.get(name)
        if taken is None:
            path = os.path.join(self._folder, name)
            if ".." in path:
                path = os.path.normpath(path)
            taken = self._files[name] = read_config(name, path, self.faults)
        return taken

    def take_named(self, name: str) -> tuple[Source, Located | None] | StokerError:
        """Give a file that another one names; an error that reading it met is for the caller to place."""
        try:
            return self.take(name)
        except StokerError as error:
            return error

    def find(self, folder: str, name: str) -> str | None:
        """Give the name of the file that is meant by a name with or without its suffix; nothing if there is none."""
        for suffix in ("", *SUFFIXES) if name.endswith(SUFFIXES) else SUFFIXES:
            file = os.path.join(folder, name + suffix)
            if file in self._files or os.path.isfile(os.path.join(self._folder, file)):
                return file
        return None

    def options(self, name: str) -> dict[str, str]:
        """Give the configuration files in a folder by their name without suffix."""
        options = self._options.get(name)
        if options is None:
            options = self._options[name] = options_in(os.path.join(self._folder, name))
        return options
