"""Reservations of device memory by all processes of this machine, in a folder of files.

Promises: true after any crash; no two processes get the same memory.
Start with `ledger`; `ledger_rules` decides, purely.
"""
