"""Experiments that are no comparison: closed forms, identities, attacks, a function each."""
