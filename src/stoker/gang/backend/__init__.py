"""What ranks speak to each other through: torch.distributed. The only part of `gang` that imports torch.

Only processes of ranks, and the zygote they are forked from, import what is in here; the owner of a gang never does.
"""
