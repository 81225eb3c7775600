"""Conformance suites for methods: ours and yours."""
