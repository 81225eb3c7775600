"""Experiments that are no comparison of methods, a function a file."""
