"""The statistics of the tabular cookbook: plain functions on data frames and arrays, without plans or stages.

Everything here may import numpy, pandas and scikit-learn at the top, so it is imported from inside stage functions
only.
"""
