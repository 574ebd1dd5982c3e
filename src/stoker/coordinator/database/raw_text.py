"""How SQLite's text is read where it may be damaged: as its bytes, or with a mark for what is no text.

Usually what is no text is an error that says nothing of its row. PostgreSQL never gives such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection


def marked(data: bytes) -> str:
    """Give text, with a mark in place of each byte that is none."""
    return data.decode(errors="replace")


@contextmanager
def read_text_as(connection: Connection, kind: Callable[[bytes], Any]) -> Iterator[None]:
    """Let text be given so while the block lasts."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        yield
        return
    before = driver.text_factory
    driver.text_factory = kind
    try:
        yield
    finally:
        driver.text_factory = before
