"""Programs in any language show that they conform to ``SPEC.md``: ``python -m floodmark.schemas.conformance``."""
