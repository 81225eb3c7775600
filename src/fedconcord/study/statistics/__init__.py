"""Numbers over seeds: folders read back, intervals, ranks, and what may be said of the order of methods."""
