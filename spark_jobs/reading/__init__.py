"""From Kafka records to rows with an event time: columns, judgements, and the counts of what is no row."""
