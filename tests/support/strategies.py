"""One strategy of each kind, by name."""

from datetime import timedelta

from floodmark import producers as floodmark

MS = timedelta(milliseconds=1)


def one_of_each(span: timedelta) -> dict[str, floodmark.Strategy]:
    """Return a strategy of each kind; ``span`` is the bound of the one, and what another one learns from."""
    return {
        "ascending": floodmark.ascending(),
        "bounded": floodmark.bounded_out_of_orderness(span),
        "explicit": floodmark.explicit(),
        "ingress": floodmark.ingress(),
        "punctuated": floodmark.punctuated(lambda value: int(value) if value else None),
        "percentile": floodmark.percentile(span),
        "adaptive": floodmark.adaptive(),
    }
