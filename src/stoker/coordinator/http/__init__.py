"""The coordinator over HTTP: routes, limits, event streams, and the server process.

Promises: bounded bodies and headers; every refusal has a code and a hint.
Start with `http_app`; `http_connection` reads requests from sockets.
"""
