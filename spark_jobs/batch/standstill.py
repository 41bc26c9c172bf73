"""Names once who holds a watermark that has stood still for some batches."""

import logging
from typing import Final

from floodmark.schemas.errors.base import iso
from floodmark.spark_jobs.progress.progress import Progress

_log = logging.getLogger(__name__)
_BATCHES: Final = 10
_SHOWN: Final = 3


class Standstill:
    """Counts how many batches in a row have not moved the watermark of a job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._batches = 0

    def note(self, progress: Progress, *, moved: bool) -> None:
        """Note a batch; log who holds the watermark at the tenth that has not moved it."""
        self._batches = 0 if moved or progress.ended else self._batches + 1
        if self._batches == _BATCHES:
            holders = "; ".join(hold.sentence for hold in progress.holders()[:_SHOWN])
            at = iso(progress.watermark)
            _log.warning("job %s: %d batches have not moved the watermark (%s): %s", self._job, _BATCHES, at, holders)
