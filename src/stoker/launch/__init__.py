"""Start our programs: workers of the queue on backends that people have, and services of this machine.

Promises: everything is rendered as text before anything is submitted or installed.
Start with `launchers`, or with `installer` for services.
"""
