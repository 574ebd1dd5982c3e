"""Words of earlier tools that keep working. The only place that knows them; help and suggestions do not list them."""

from __future__ import annotations

ALIASES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("recipe", "list"), ("recipes",)),
    (("recipe", "run"), ("run",)),
    (("recipe",), ("recipes",)),
    (("job", "list"), ("jobs",)),
    (("job", "cancel"), ("cancel",)),
    (("job", "logs"), ("logs",)),
    (("requeue",), ("jobs", "requeue")),
    (("reload",), ("admin", "reload")),
    (("worker", "start"), ("work",)),
    (("worker", "list"), ("machines",)),
    (("worker", "run"), ("work",)),
    (("worker",), ("machines",)),
    (("workers",), ("machines",)),
    (("job",), ("jobs",)),
    (("log",), ("logs",)),
    (("cache",), ("store",)),
    (("clean-cache",), ("store", "prune", "--everywhere")),
    (("ledger",), ("machines", "memory")),
    (("plan", "inspect"), ("run", "--dry-run")),
    (("plan", "resume"), ("run",)),
    (("plan",), ("run", "--dry-run")),
    (("sweep",), ("run",)),
    (("train",), ("run",)),
)


def expand(words: list[str]) -> list[str]:
    """Return the words as today's commands spell them."""
    for old, new in ALIASES:
        if tuple(words[: len(old)]) == old:
            return [*new, *words[len(old) :]]
    return words
