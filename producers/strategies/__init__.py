"""What a source may promise: strategies that learn from events, and the emitter that turns them into marks.  Pure."""
