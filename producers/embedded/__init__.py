"""A real Kafka on this machine, from its own jars: for the demo, tests and first steps."""
