"""The jobs that run in this process: a new start from the same checkpoint stops them, and the end of the program."""

import atexit
import logging
import os
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from floodmark.spark_jobs.batch.handler import BatchHandler

_log = logging.getLogger(__name__)
_PATIENCE: Final = 10.0
"""Seconds to wait for the current batch at the end of the program."""

_handlers: Final = WeakValueDictionary[str, BatchHandler]()
"""By the id of the checkpoint; Spark keeps a handler in memory while its query runs."""
os.register_at_fork(after_in_child=_handlers.clear)  # the end of a forked process stops no job


def started(handler: BatchHandler) -> None:
    """Register a started job."""
    _handlers[handler.identity.checkpoint_id] = handler


def stop(checkpoint_id: str) -> bool:
    """Stop the job that runs from a checkpoint, after its current batch; return whether there was one."""
    handler = _handlers.pop(checkpoint_id, None)
    if handler is None or not handler.is_running:
        return False
    job = handler.identity.job
    _log.warning("job %s already runs from this checkpoint_location: the new start stops and replaces it", job)
    handler.stop()
    return True


@atexit.register
def _stop_all() -> None:
    for handler in list(_handlers.values()):
        with suppress(Exception):  # the session may be gone
            if handler.is_running:
                advice = "call its awaitTermination() to wait for the end of its input"
                _log.warning("job %s is stopped, because the program ends: %s", handler.identity.job, advice)
                handler.stop(_PATIENCE)
