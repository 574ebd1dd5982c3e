"""Where a job goes, and why not elsewhere: offers, fit, score, explanations, simulation. Pure."""
