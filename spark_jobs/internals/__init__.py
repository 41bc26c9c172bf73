"""All that may change with the next version of Spark: its plans, its execution, its checkpoints, its file system.

Functions that cannot reach an object of Spark, or do not know its form, raise `UnsupportedSparkError`.
"""
