"""Read topics without Spark: follow them, consume what is complete, check them, show them."""
