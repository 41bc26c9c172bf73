"""Which queries can be brought back to where they were by reading their input again.  Pure.

A replay reads what the state of the operators came from, with no watermark until its end, and then with the one that
the job last ran with.  Operators whose state depends on the watermarks in between, or on all that ever came, end up
elsewhere.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from floodmark.schemas.errors import UnsupportedQueryError
from floodmark.spark_jobs.queries.plan import Operator

_EVENT_TIME: Final = re.compile(r"#\d+-T\d+ms")
_FOR_EVER: Final = "it keeps its state for ever, so all that ever came would be needed"
_ADVICE: Final = "take a new output topic and read the input from its beginning"


def refuse_replay(plan: Operator, judged: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Refuse a query whose state a replay would not bring back.

    Args:
        plan: the query.
        judged: each operator with state, and the event-time columns of one of its inputs.

    Raises:
        UnsupportedQueryError: names the operator and the reason.

    >>> read = Operator("EventTimeWatermark")
    >>> refuse_replay(Operator("Aggregate", children=(read,)), [("Aggregate", ["at"])])
    >>> try:
    ...     refuse_replay(Operator("Aggregate", children=(read,)), [("Aggregate", [])])
    ... except UnsupportedQueryError as error:
    ...     print(error.operator, "-", error.reason)
    published='continue' with Aggregate - it keeps its state for ever, so all that ever came would be needed
    """
    for node in plan.walk():
        if node.keeps_state and "WithState" in node.kind:
            reason = "its state depends on when the watermark came, which a replay cannot repeat"
            raise _refused(node.kind, reason)
        if node.kind == "DeduplicateWithinWatermark":
            reason = "which of two near rows it has kept depends on the order in which they came"
            raise _refused("drop_duplicates_within", reason)
        if node.keeps_state and node.kind == "GlobalLimit":
            raise _refused("limit", "how many rows it has let pass is not known any more")
        if node.kind == "Deduplicate" and not _EVENT_TIME.search(node.text):
            raise _refused("dropDuplicates", _FOR_EVER)
    for kind, columns in judged:
        if not columns:
            raise _refused(kind, _FOR_EVER)


def _refused(kind: str, reason: str) -> UnsupportedQueryError:
    return UnsupportedQueryError(operator=f"published='continue' with {kind}", reason=reason, advice=_ADVICE)
