"""The papers' experiments, and the audit of what messages leak: clients of the library, which knows neither."""
