"""What the records of a topic without watermarks say of time, and what may be promised of them.  Pure."""
