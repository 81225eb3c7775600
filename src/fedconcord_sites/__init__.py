"""Deployment: one server and sites that share nothing but bytes; how the bytes travel is the transport's."""
