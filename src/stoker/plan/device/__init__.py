"""Devices, as a run sees them: the gate before them, the wait for a turn, and what is held of them."""
