"""Bring a topic without watermarks into the system, exactly once: the shell around `event_times`."""
