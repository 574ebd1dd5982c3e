"""From a score book to what a person reads: tables, plots, a model card and one page.

Everything written here depends on the score book alone: no time, host or path, so the same scores give the same
bytes.
"""
