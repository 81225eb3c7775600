"""Flower as the transport of a deployment: its processes started and kept, and the command `fedconcord flower`."""

INSTALL = "deployment with Flower needs the package flwr: pip install 'fedconcord[flower]'"
