"""The cockpit: jobs, machines and one job on a terminal, live. The only package that imports Textual.

`feed` fetches in threads, `cockpit_state` decides what keys do, `frame` and `job_frame` turn data into lines, and
`cockpit` draws the lines that changed.
"""
