"""What is shown, as data: pure functions from facts to rows, lines, series and charts.

Promises: no I/O. Tables, charts and lines that more than one command shows are made here; those of a single command may
be in its module of `cli`.
Start with `text_tables`.
"""
