"""The command ``floodmark``.  Commands that need Spark join by the entry-point group ``floodmark.commands``."""
