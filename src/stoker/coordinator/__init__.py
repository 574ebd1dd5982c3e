"""The server that owns the queue: database, queue, authentication, storage, health, webhooks, HTTP.

Promises: one writer; what was answered is durable; a stale lease never changes a job.
Start with `queue.writer`, then `http.http_app`.
"""
