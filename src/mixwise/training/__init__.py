"""Everything behind `mixwise train`: choices, loop, step, and the run folder."""
