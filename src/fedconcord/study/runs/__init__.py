"""Runs: what is planned, done alone or several at once, and what came of each."""
