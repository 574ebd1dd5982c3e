"""Metrics: the file they are kept in, who writes it, and who reads it for people and other programs."""
