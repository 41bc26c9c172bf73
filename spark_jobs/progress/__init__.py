"""What a job knows of its progress, and what one batch adds to it.  Pure: no Spark, Kafka or clock."""
