"""Who holds how much of which device: machine-wide, and true after any crash."""
