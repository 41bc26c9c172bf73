"""Event times of topics without marks: formats, time policies, and the watermarks computed from them.  Pure."""
