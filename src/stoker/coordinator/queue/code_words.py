"""Words for programs' code, and which of them a machine denies that runs only certain code.

As long as no machine is so, no class knows about code. From the first on (`Book.tells_code_apart`), a program's class
has a word for its tree and commit, and machines that do not accept it deny that word: a grant costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.coordinator.queue.book import Book, Machine
from stoker.model.requirements import code_word
from stoker.wire.code import code_of, why_not_accepted

_PROGRAM = "command"


def code_in(book: Book, spec: Mapping[str, Any]) -> str:
    """Give the word for an order's code; empty: nobody asks, or it is a recipe's, which is the machine's own."""
    if not book.tells_code_apart or spec["recipe"] != _PROGRAM:
        return ""
    return code_word(*code_of(spec))


def learn_code(book: Book, word: str) -> bool:
    """Take in a word; says whether it is news."""
    if word in book.code_words:
        return False
    book.code_words.add(word)
    return True


def unaccepted(book: Book, machine: Machine) -> dict[str, str]:
    """Give the code that a machine does not run, by the word that it denies, with the reason."""
    accepts = machine.accepts
    if not accepts:
        return {}
    found = {word: why_not_accepted(accepts, *word.split(":", 2)[1:]) for word in book.code_words}
    return {word: why for word, why in found.items() if why}
