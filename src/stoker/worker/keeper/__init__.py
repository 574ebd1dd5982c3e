"""The keeper: the process of a worker that holds leases, renews them and reports; it never trains."""
