"""What there is and what may happen to it: nouns, states, errors, time.

The bottom floor. Standard library only, no I/O, no reading of clock or environment except in `clock`.
"""
