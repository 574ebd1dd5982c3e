"""The memory that a rank shows to its peers: one block per rank, with named buffers in it.

`seam` is what a window is; `host` makes it of memory of this computer, `cuda_ipc` of memory of a GPU.
"""
