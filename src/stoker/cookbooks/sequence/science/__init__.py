"""The work behind the stages of the sequence cookbook: plain functions on arrays and tensors, without plans.

Everything here may import numpy and torch at the top, so it is imported from inside stage functions only.
"""
