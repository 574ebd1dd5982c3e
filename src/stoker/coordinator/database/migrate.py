"""Bring a database's tables to this program's version, step by step, or refuse.

The steps are Alembic's, in `migrations/versions/`, and travel with the program. Alembic itself is imported only for a
database of an earlier version: an empty one gets the tables of `tables` at once, which are those that all steps make.
"""

from __future__ import annotations

import os

from sqlalchemy import Column, Connection, Index, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from stoker.coordinator.database.tables import META, METADATA
from stoker.core.errors import DatabaseTrouble, VersionSkew

HEAD = "0009"
"""The newest step. A test holds it and the folder together."""
_VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
_FOLDER = os.path.join(os.path.dirname(__file__), "migrations")
_STEP = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""As Alembic makes it."""


def version_of(connection: Connection) -> str:
    """Return the version of a database's tables; empty if there are none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def migrate(connection: Connection, *, shown: str) -> str:
    """Migrate a database to `HEAD` in one transaction, and return its version before.

    Raises `VersionSkew` if a newer version created it, `DatabaseTrouble` if it has tables of another program.
    """
    was = version_of(connection)
    if was == HEAD:
        connection.rollback()
        return was
    if was and was not in _VERSIONS:
        raise VersionSkew(
            f"{shown} was created by a newer Stoker (its tables are at {was}, this version supports {HEAD})",
            hint="use that version, or restore an earlier backup",
            found=was,
            known=HEAD,
        )
    if not was:
        _refuse_strangers(connection, shown)
    connection.rollback()
    (upgrade if was else _create)(connection)
    return was


def _refuse_strangers(connection: Connection, shown: str) -> None:
    ours = sorted(set(inspect(connection).get_table_names()) & set(METADATA.tables))
    if ours:
        raise DatabaseTrouble(
            f"{shown} has tables of another program: {', '.join(ours)}", hint="name an empty database", tables=ours
        )


def _create(connection: Connection) -> None:
    for table in (*METADATA.sorted_tables, _STEP):
        connection.execute(CreateTable(table))
        # The newest of two indexes that cost SQLite the same is used: one with a condition leads to fewer rows.
        for index in sorted(table.indexes, key=lambda one: (_has_condition(one), str(one.name))):
            connection.execute(CreateIndex(index))
    connection.execute(insert(META), {"key": "generation", "value": "1"})
    connection.execute(insert(_STEP), {"version_num": HEAD})
    connection.commit()


def _has_condition(index: Index) -> bool:
    return index.dialect_options["sqlite"]["where"] is not None


def upgrade(connection: Connection) -> None:
    """Carry out every step that a database has not had, from the first on if it is empty."""
    from alembic import command  # noqa: PLC0415 - costs a fifth of a second, and is rarely needed
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", _FOLDER.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
