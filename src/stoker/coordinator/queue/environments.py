"""Environments of jobs against machines: which machine can't have which, and what its worker says it has.

A class of jobs knows its environment by one digest. Machines that can't have one deny that digest, so that what is
granted costs nothing more: only news of an environment, or of what a machine has, is looked at here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.coordinator.queue.book import Book, Machine
from stoker.model.requirements import environment_word
from stoker.wire.environments import Standing, environment_digest, has_python, outlook, reported_digest
from stoker.wire.leasing import Holdings
from stoker.wire.orders import EnvironmentChoice

Choices = tuple[EnvironmentChoice, ...]


def choices_in(spec: Mapping[str, Any]) -> Choices:
    """Give the choices of an order, as it came or as it is stored."""
    return tuple(
        one if isinstance(one, EnvironmentChoice) else EnvironmentChoice(**one) for one in spec.get("environment", ())
    )


def digest_in(spec: Mapping[str, Any]) -> str:
    """Give the digest by which an order's class knows its environment; empty: it has none."""
    return environment_digest(choices_in(spec)) if spec.get("environment") else ""


def learn(book: Book, choices: Choices) -> bool:
    """Take in an environment; return True if it is news."""
    digest = environment_digest(choices)
    is_known = digest in book.environments
    book.environments[digest] = choices
    return not is_known


def unable(book: Book, machine: Machine) -> dict[str, str]:
    """Give the environments that a machine can't have, by the word that it denies, with the reason."""
    held = machine.holdings
    if held is None or not book.environments:
        return {}
    found = {
        digest: outlook(choices, machine.name, held)
        for digest, choices in book.environments.items()
        if _is_in_doubt(choices, held)
    }
    return {environment_word(digest): one.why for digest, one in found.items() if one.standing is Standing.IMPOSSIBLE}


def _is_in_doubt(choices: Choices, held: Holdings) -> bool:
    """Return True if a machine may be unable to have it: most are for all machines, and none refused them."""
    is_for_all = any(not one.platform for one in choices)
    return (
        not is_for_all
        or not held.platform
        or any(one.refused or reported_digest(one) in held.impossible or not has_python(one, held) for one in choices)
    )


def is_news(book: Book, machine: Machine, holdings: Holdings) -> bool:
    """Take in what a worker says it has; says whether it can have other environments now than before."""
    was = unable(book, machine)
    machine.holdings = holdings
    return unable(book, machine) != was
