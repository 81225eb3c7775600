"""The local step of a client, in several forms that compute the same."""
