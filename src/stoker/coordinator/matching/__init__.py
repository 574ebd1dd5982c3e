"""Which waiting job a machine gets: requirement classes in their order, asked of the one rule; and why not another."""
