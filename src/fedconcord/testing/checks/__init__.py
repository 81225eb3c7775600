"""The checks by what they look at; `fedconcord.testing.check` says what each wants."""
