"""What is shown, as data: pure functions from facts to rows, lines, series and charts.

Promises: no I/O; every output of commands and pages is made here.
Start with `text_tables`.
"""
