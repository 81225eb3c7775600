"""What a person types: the Python functions, the command, trackers, a trained model in use."""
