"""The steps by which databases are brought up to date; Alembic runs them."""
