"""Files that workers upload: attempt files, results, checkpoints, trees; and how long they are kept.

Promises: bytes are durable before their name; nothing in use is deleted.
Start with `storage`, then `retention`.
"""
