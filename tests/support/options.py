"""The rarer settings of `read` and `write`, named beside the others: for helpers that hand all of them on."""

from dataclasses import fields
from typing import Any

from floodmark.spark_jobs import ReadOptions, WriteOptions


def with_options(kind: type[ReadOptions | WriteOptions], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with those among them that ``kind`` has in one, as ``options``."""
    chosen = {field.name: arguments.pop(field.name) for field in fields(kind) if field.name in arguments}
    return {**arguments, "options": kind(**chosen)}
