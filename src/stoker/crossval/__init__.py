"""Whether a model that moved gives the same answers: fixtures, reference runs, comparisons, gates.

Start with `fixture_models.py`. Libraries of the extra `crossval` are imported inside functions.
"""
