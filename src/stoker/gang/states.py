"""The states and phases of a rank, as numbers that stand in its mailbox page."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """What a rank says of itself. A page full of zeros is idle."""

    IDLE = 0
    STARTED = 1
    SUCCESS = 2
    ERROR = 3
    CLOSING = 4
    CLOSED = 5


class Phase(IntEnum):
    """How far a rank has come, in the order in which it gets there."""

    FORKED = 0
    DEVICE = 1
    STORE = 2
    COMM = 3
    WINDOW = 4
    STAGING = 5
    READY = 6
    RUN = 7
