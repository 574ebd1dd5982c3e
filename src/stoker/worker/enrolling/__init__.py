"""How a machine, or a person on it, comes to belong to a fleet: joining, a look at the machine first, renewing."""
