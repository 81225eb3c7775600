"""The papers' experiments, the arena of methods, and the audit of what messages leak: clients of the library, which
knows none of them."""
