"""Attempts that share a process: members, their company, its keeper and its door."""
