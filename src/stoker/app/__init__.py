"""Build every object and join the packages: the only place that reads the environment, the clock and paths.

Promises: one `App` for each process; nothing is opened before it is needed.
Start with `app`; `worker_app` and `coordinator_app` build the two daemons, `*_main` run in child processes.
"""

from stoker.app.app import App

__all__ = ["App"]
