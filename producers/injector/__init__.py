"""Copy a topic without watermarks to one with marks, exactly once: the shell around `event_times`."""
