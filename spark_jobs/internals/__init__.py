"""All that may change with the next version of Spark: its plans, its execution, its checkpoints, its file system."""
