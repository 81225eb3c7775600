"""Judges somebody else's implementation of a federated method: what it computes on small problems, and which known
mistake explains a difference."""
