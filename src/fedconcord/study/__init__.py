"""Many runs: settings, records, statistics over seeds, searches."""
