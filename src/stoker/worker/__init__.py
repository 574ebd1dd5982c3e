"""Run jobs and report: the folder of a job, its execution here, its log. Leases from a coordinator come later."""
