"""The arithmetic of a decoder's rows (projections, norms, activation), fast or batch-invariant."""
