"""Ways to find out what a machine has; each may fail, hang or lie, and none may raise."""
