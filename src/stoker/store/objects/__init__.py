"""Where objects live: one seam, and the implementation on this machine's disk."""
