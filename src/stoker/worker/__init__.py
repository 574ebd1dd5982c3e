"""The daemon that holds leases: state machine, attempts, environments, inputs, exec, enrolment.

Guarantees: decisions are pure functions (`state_machine`); `actions` performs them; no process outlives its lease.
Start with `daemon`.
"""
