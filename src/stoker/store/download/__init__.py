"""Downloads that can't lie: the bytes of exactly one version under the final name, or nothing."""
