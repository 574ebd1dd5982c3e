"""Commands of operators inside running jobs, on the machine where the job runs."""
