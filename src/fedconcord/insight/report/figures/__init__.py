"""The figures, each a matplotlib Figure made by the object API: no global state, the same bytes for the same runs."""
