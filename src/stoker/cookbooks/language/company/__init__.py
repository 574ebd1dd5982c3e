"""A company: one process that holds one base and trains many adapters over it, each as if it were alone.

What is decided (who trains now, at which rate, in which passes, when to evaluate, stop, give up or shrink) is decided
in modules of pure functions; `running` acts on it. Nothing here is imported before a training begins.
"""
