"""One process for several attempts that share a base: its supervisor, its members, their messages.

Promises: a member that fails or leaves stops no other member.
Start with `shared_runner`.
"""
