"""The database: tables, migrations, opening, checking, backup and restore; SQLite or PostgreSQL.

Promises: the same rows on both; a restore raises the generation, so that an old epoch never returns.
Start with `tables`, then `database`.
"""
