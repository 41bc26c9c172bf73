"""Every error Floodmark raises: a class with typed fields; its message says who, what was expected, what to do.

The blame is in the type.  These families are caught, never raised themselves (but `UsageError`):

- `UsageError`: the caller asked for what cannot be right; change the call.
- `CorruptRecordError`: a topic holds what cannot be read; look at the place it names.
- `SnapshotError`: stored progress does not fit; restore it, rebuild it, or begin with a new place.
- `InfrastructureError`: the machine, the network or the cluster; mend it and start again.
- `ResultError`: the query gives rows that contradict what the job has said of them; change the query.

`JobFailedError` and `DeadlineError` blame nobody: their reason says what was seen.
"""

from floodmark.schemas.errors.base import *
from floodmark.schemas.errors.runtime import *
from floodmark.schemas.errors.stored import *
from floodmark.schemas.errors.usage import *
