"""The commands of `stoker`: parse words, call the packages below, print lines or one JSON object.

Promises: exit codes and `--json` fields as documented; each command imports only what it needs.
Start with `commands` (the table of commands), `dispatch` and `run`.
"""
