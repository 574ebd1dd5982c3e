"""The queue: what may be asked of it, what it decides, and how decisions become rows, many in one commit."""
