"""Machines of a fleet that send trees to each other: a small TLS server, and admission to it.

Promises: only machines of the fleet are served; rate and connections are limited.
Start with `peer_server`.
"""
