"""Every error Floodmark raises: a class with typed fields, whose message says what happened, why, and what to do.

The type says what has to change.  Catch these families; Floodmark raises their kinds (and `UsageError` itself):

- `UsageError`: the call is wrong; change the call.
- `CorruptRecordError`: a record of a topic cannot be read; look at the partition and offset that the error names.
- `SnapshotError`: stored progress does not fit; restore it, rebuild it, or use a new location.
- `InfrastructureError`: the machine, the network or the cluster failed; repair it and restart.
- `ResultError`: the query returns rows that contradict the job's watermark; change the query.

`JobFailedError`, `DeadlineError` and `IncompletePeriodError` belong to no family: their message says what was seen.
"""

from floodmark.schemas.errors.base import *
from floodmark.schemas.errors.runtime import *
from floodmark.schemas.errors.stored import *
from floodmark.schemas.errors.usage import *
