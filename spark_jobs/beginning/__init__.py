"""How a job begins that has no checkpoint: at a time, or behind what its output topic has from it already."""
