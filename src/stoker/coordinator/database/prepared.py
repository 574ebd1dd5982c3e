"""Statements, compiled once for one database; their rows then go to the driver as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from sqlalchemy import ARRAY, BigInteger, ColumnElement, String, any_, bindparam, func, select
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ClauseElement


class Prepared:
    """A statement in one database's own words. Rows are maps from its parameters' names.

    `columns` are those that an insert or update sets from parameters of the same names. PostgreSQL takes many rows at
    once by `copy_text` (rows follow; for very many) or `many_text` (all of them as one JSON text, `many`), where a
    statement has one of them. An upsert has one only if its rows never name a key twice (`is_distinct`).
    """

    def __init__(
        self, statement: ClauseElement, dialect: Dialect, columns: Sequence[str] = (), *, is_distinct: bool = False
    ) -> None:
        # Positional for both drivers: SQLite counts `?`, psycopg counts `%s`.
        style = "qmark" if dialect.name == "sqlite" else "format"
        sort: Any = type(dialect)
        compiled: Any = statement.compile(dialect=sort(paramstyle=style), column_keys=list(columns) or None)
        self.text = str(compiled)
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        said = {name: value for name, value in compiled.params.items() if value is not None}
        self._said = {name: said[name] for name in self.names if name in said}
        self._pick: Any = itemgetter(*self.names) if len(self.names) > 1 else None
        self.copy_text, self.many_text = "", ""
        self._keys = tuple(f"p{at}" for at in range(len(self.names)))
        is_upsert = "ON CONFLICT" in self.text
        if dialect.name == "postgresql" and (is_distinct or not is_upsert):
            self._make_many(dialect, [compiled.binds[name].type for name in self.names])

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put a row's values in the statement's order, with what the statement itself says (`LIMIT 1`)."""
        if self._said:
            row = {**self._said, **row}
        if self._pick is not None:
            values: tuple[Any, ...] = self._pick(row)
            return values
        return tuple(row[name] for name in self.names)

    def many(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Give rows as `many_text` takes them. Made in C, it costs less than half of a list per parameter."""
        keys, values = self._keys, self.values
        return json.dumps([dict(zip(keys, values(row), strict=True)) for row in rows], separators=(",", ":"))

    def _make_many(self, dialect: Dialect, types: list[Any]) -> None:
        """Find a way to send many rows as one message: a fifth of the time of one message per row."""
        verb = self.text.partition(" ")[0]
        if verb not in ("INSERT", "UPDATE", "DELETE") or not self.names:
            return
        # A cast to VARCHAR(12) would cut a longer text in silence.
        sorts = ["TEXT" if isinstance(one, String) else one.compile(dialect) for one in types]
        many = ", ".join(f"{key} {sort}" for key, sort in zip(self._keys, sorts, strict=True))
        source = f"json_to_recordset(%s::json) AS many({many})"
        if verb == "INSERT":
            into = self.text.removeprefix("INSERT INTO ").partition(" VALUES ")[0]
            _, conflict, what_then = self.text.partition(" ON CONFLICT ")
            self.copy_text = "" if conflict else f"COPY {into} FROM STDIN"
            self.many_text = f"INSERT INTO {into} SELECT * FROM {source}{conflict}{what_then}"  # noqa: S608 - all ours
        else:
            numbers = count()
            body = _PARAMETER.sub(lambda _: f"many.p{next(numbers)}", self.text)
            before, _, condition = body.rpartition("WHERE ")
            join = "FROM" if verb == "UPDATE" else "USING"
            self.many_text = f"{before} {join} {source} WHERE {condition}"


_PARAMETER = re.compile(r"%s(::\w+)?")


def one_of(column: ColumnElement[Any], name: str, dialect: Dialect) -> ColumnElement[bool]:
    """Say that a column has one of the values of a list, however long: one parameter, `WriterConnection.many`."""
    if dialect.name == "sqlite":
        return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))
    kind = BigInteger() if isinstance(column.type, BigInteger) else String()
    return column == any_(bindparam(name, type_=ARRAY(kind)))
