"""The settings of a job: every key with its meaning, merged from defaults, a file, options and --set, and checked.

A later source wins over an earlier one. Two keys that exclude each other (`local.epochs` and `local.steps`) may not
come from one source; across sources the later one replaces the other. `sources` and `settings` need no torch, so that a
wrong key or value is refused without it.
"""
