"""`stoker fetch`, in parts: its grammar, what it is pointed at, and a way for each kind of that."""
