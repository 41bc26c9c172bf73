"""The edge to Kafka and to the machine: admin, transactions, partitioners, clocks."""
