"""Complete rows and windows out of a topic: buffers that a watermark releases, and the places to go on from.  Pure."""
