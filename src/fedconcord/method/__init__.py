"""The mathematics of a round: no file, no clock, no process, no data set."""
