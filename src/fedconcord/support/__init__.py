"""What everything stands on, and what the command needs before it loads torch."""
