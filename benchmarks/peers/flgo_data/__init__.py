"""A benchmark for FLGo, as its users write one: the federation that peers.py wrote."""
