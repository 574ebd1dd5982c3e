"""The database: its tables, its migrations, how it is opened, checked, backed up and restored."""
