"""Between a grant and its start: what a job needs is brought here, or it is said why it can't be."""
