"""Programs that do a stage's work: how one is started, watched and judged, and what of it is kept."""
