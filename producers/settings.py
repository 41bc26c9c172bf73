"""What a source is configured with, and what of it cannot be right."""

from floodmark.producers.clients.admin import Config
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership


def check_settings(config: Config, source: object, membership: object, on_late: object) -> None:
    """Refuse settings that cannot be right, before anything is connected.

    Raises:
        UsageError: which one, and what to write.

    >>> check_settings({}, source="", membership=Membership(), on_late="send")
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
    check_membership(source, membership)


def check_membership(source: str, membership: object) -> None:
    """Refuse what is no membership, as the number alone.

    Raises:
        UsageError: what to write.
    """
    if not isinstance(membership, Membership):
        expected = f"Membership(version=1, size={membership if isinstance(membership, int) else 3})"
        raise UsageError(reason=f"source {source!r}: the membership is {membership!r}, expected {expected}")
