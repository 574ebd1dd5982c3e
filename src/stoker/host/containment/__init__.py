"""Programs kept within their memory, and ended for certain, by whatever this machine offers.

`choice.choose` finds the strongest mechanism that works here and says why stronger ones do not; what it gives opens a
`box` per attempt. How many forks or new sessions a program makes, its box knows everybody in it.
"""
