"""The progress of a job, and how one batch changes it.  Pure: no Spark, Kafka or clock."""
