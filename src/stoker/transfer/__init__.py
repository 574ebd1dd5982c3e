"""Everything that moves bytes: downloads, hubs, trees between machines, peers.

Promises: the bytes of exactly one version under the final name, or nothing; every transfer resumes.
Start with `download.download`, then `trees.tree_sources`.
"""
