"""Who holds which samples, what a client may be asked of its f_i, who takes part and how fast."""
