"""One strategy of each kind, by name."""

from datetime import timedelta

from floodmark.producers import (
    Strategy,
    adaptive,
    ascending,
    bounded_out_of_orderness,
    explicit,
    ingress,
    percentile,
    punctuated,
)

MS = timedelta(milliseconds=1)


def one_of_each(span: timedelta) -> dict[str, Strategy]:
    """Return a strategy of each kind; ``span`` is the bound of the one, and what another one learns from."""
    return {
        "ascending": ascending(),
        "bounded": bounded_out_of_orderness(span),
        "explicit": explicit(),
        "ingress": ingress(),
        "punctuated": punctuated(lambda value: int(value) if value else None),
        "percentile": percentile(span),
        "adaptive": adaptive(),
    }
