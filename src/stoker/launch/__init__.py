"""Start our programs and keep them running: services of this machine.

Promises: everything is rendered as text before anything is installed.
Start with `installer`.
"""
