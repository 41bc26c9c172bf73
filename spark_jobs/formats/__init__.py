"""What a topic's bytes mean, and how rows become bytes again."""
