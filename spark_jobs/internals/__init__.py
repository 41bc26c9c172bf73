"""The internals of Spark: all that a new version of Spark may change."""
