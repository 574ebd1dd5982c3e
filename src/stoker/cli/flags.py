"""Flags that every command takes, wherever they stand. Kept apart from parsing, because `stoker --help` needs them."""

from __future__ import annotations


class Flags:
    """What was asked of every command alike."""

    __slots__ = ("debug", "help", "json", "quiet", "version")

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.debug = False
        self.help = False
        self.version = False


_FLAGS = {
    "--json": "json",
    "--quiet": "quiet",
    "-q": "quiet",
    "--debug": "debug",
    "--help": "help",
    "-h": "help",
    "--version": "version",
    "-V": "version",
}


def take_flags(argv: list[str]) -> tuple[list[str], Flags]:
    """Take the flags of every command out of the words, wherever they stand before a `--`."""
    flags = Flags()
    words: list[str] = []
    for position, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[position:]], flags
        if word in _FLAGS:
            setattr(flags, _FLAGS[word], True)
        else:
            words.append(word)
    return words, flags
