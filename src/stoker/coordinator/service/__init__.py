"""The coordinator over HTTP: routes, limits, live streams, and the process that serves them."""
