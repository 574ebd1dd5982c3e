"""The executor and its parts: what runs next, what is under way, and what became of it."""
