"""`stoker adapters`: the adapters of a file, trained together, and how they stand."""
