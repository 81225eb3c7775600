"""How one job is computed and kept: engines, messages, rows, checkpoint, a run's folder."""
