"""All that Spark may change with its next version: its plans, its execution, its checkpoints, its file system."""
