"""Repositories of a Hugging Face hub: what they hold, and the public cache that other programs read as well."""
