"""What a source is configured with, and what of it cannot be right."""

from floodmark.producers.clients.admin import Config
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import check_membership


def check_settings(config: Config, source: object, membership: object, on_late: object) -> None:
    """Refuse settings that cannot be right, before anything is connected.

    Raises:
        UsageError: which one, and what to write.

    >>> check_settings({}, source="", membership=1, on_late="send")
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: the source is '', expected a name, as source='web-1'
    """
    if not isinstance(source, str) or not source:
        raise UsageError(reason=f"the source is {source!r}, expected a name, as source='web-1'")
    if str(config.get("enable.idempotence", "true")).lower() != "true":
        raise UsageError(
            reason=f"source {source!r}: enable.idempotence is off; without it a retry can be written behind a mark"
        )
    if str(config.get("delivery.report.only.error", "false")).lower() != "false":
        raise UsageError(
            reason=f"source {source!r}: delivery.report.only.error is on; the watermark would wait for reports for ever"
        )
    if on_late not in {"send", "raise"}:
        raise UsageError(reason=f"source {source!r}: on_late is {on_late!r}, expected 'send' or 'raise'")
    check_membership(membership, f"source {source!r}")
