"""Methods tuned alike on many federations, and how each stands beside the best tuned one."""
