"""The daemon that holds leases: state machine, attempts, environments, inputs, exec, enrolment.

Promises: it decides purely (`state_machine`) and acts on the decisions (`actions`); no process outlives its lease.
Start with `daemon`.
"""
