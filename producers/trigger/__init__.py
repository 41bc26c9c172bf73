"""Fire once for each complete period of topics: the shell around `plan`."""
