"""The commands `fedconcord arena`, `audit` and `reproduce`."""
