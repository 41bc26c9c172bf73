"""Complete rows and windows of topics, and the positions to resume from.  Pure."""
