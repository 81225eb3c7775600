"""Who takes part, how much work they do, and when replies come: pure functions of (seed, round, client)."""
