"""Where a job goes, and why not elsewhere: decided purely."""
