"""Axes that compose with any method: each takes an algorithm and gives one."""
