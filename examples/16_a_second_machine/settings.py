"""What is changed and not committed, in this example."""

STEPS = 20
