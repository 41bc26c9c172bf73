"""A text of Spark that looks otherwise than it is known to is an error, not a wrong count."""

import pytest
from floodmark.schemas.errors import UnsupportedSparkError
from floodmark.spark_jobs.internals.texts import sizes


@pytest.mark.parametrize("text", ["[]", "[{1, 2.0}]", "[{1.0E7, 2.0}, {3, 1.2E7}]"])
def test_bins_are_read_as_spark_writes_them(text):
    assert len(sizes(text)) == text.count("{")


@pytest.mark.parametrize(
    "text", ["", "[[1, 2.0]]", "[{1, 2.0},{3, 4.0}]", "[{1, 2.0, 3.0}]", "[{x: 1, y: 2.0}]", "[{1, 2.0}, ]", "{1, 2.0}"]
)
def test_bins_in_another_form_are_refused(text):
    with pytest.raises(UnsupportedSparkError, match="histogram_numeric"):
        sizes(text)
