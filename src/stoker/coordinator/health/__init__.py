"""Machines and devices that are not well: found from what happened, told once, and closed where that helps."""
