"""Commands of the fleet: the coordinator, its workers, and jobs on them."""
