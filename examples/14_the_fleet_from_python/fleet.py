"""Submit a sweep, follow it, and bring the best result here: all from Python."""

from stoker import Client

with Client() as fleet:
    submitted = fleet.submit("manifest.toml")
    print(f"{fleet.url}: {submitted.counts}")

    for line in fleet.logs("descent/1", follow=True):
        print(line)

    jobs = fleet.wait("descent", timeout_s=120)
    assert all(job.state == "completed" for job in jobs), [(job.name, job.state, job.why) for job in jobs]
    for job in jobs:
        print(job.name, job.label, f"loss {job.metrics['loss']}", f"on {job.machine}")

    best = min(jobs, key=lambda job: job.metrics["loss"])
    files = fleet.get(best.name, "best")
    print(f"best: {best.label}", *files, sep="\n  ")

    again = fleet.submit("manifest.toml")
    assert again.counts == {"known": 3}, again.counts
    print("submitted again: nothing changed")
