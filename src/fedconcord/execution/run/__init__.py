"""One run in its folder: what lies there, who writes, when it stops."""
