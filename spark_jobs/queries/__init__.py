"""A query before it runs: its plan, its options, and what is refused.  Pure."""
