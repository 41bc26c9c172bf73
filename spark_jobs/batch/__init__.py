"""What happens around each micro-batch: what it read, what it wrote, and what is kept of both."""
