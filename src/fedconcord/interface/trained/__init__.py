"""A trained model outside of its run: as a program, and on new data."""
