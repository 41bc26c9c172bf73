"""Fixtures: a source of JSON rows, and what reads them."""

from support.json_source import rows, source

__all__ = ["rows", "source"]
