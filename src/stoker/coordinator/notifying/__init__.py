"""Who is told of events elsewhere: which events, to which addresses, signed, at least once."""
