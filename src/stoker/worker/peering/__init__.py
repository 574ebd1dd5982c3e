"""Machines of a fleet that give trees to each other: what is here, a small server for it, and the way to others."""
