"""The commands `fedconcord audit` and `fedconcord reproduce`."""
