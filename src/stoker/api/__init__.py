"""What every face calls: `Job`, one handle for jobs of this machine and of a fleet, and what finds and lists jobs.

Promises: prints nothing; each verb on a job (logs, wait, cancel, explain, results, gather) has one signature and one
implementation per side. Start with `job`, then `local_job`, `fleet_job` and `job_lookup`.
"""
