"""From Kafka records to rows with an event time: columns, late rows, and the counts of unusable records."""
