"""What a trigger fires, and when.  Pure."""
