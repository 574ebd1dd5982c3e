"""Services of the operating system, written once.

Durable writes, lock files, process identity, process groups and their confirmed stop, the warm process that work is
forked from, and what this computer has left. Errors of the operating system become Stoker's own here.

Linux is what all of it is built and tested on. The macOS branches are written with care and untested; forking work
is for Linux only, and other systems start programs instead.
"""
