"""What an injection refuses before it begins."""

import pytest
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.schemas.errors import UsageError


@pytest.mark.parametrize("slip", [0, True, "3", None, (1, 3)])
def test_a_membership_that_is_none_is_refused(slip):
    with pytest.raises(UsageError, match=r"expected a number of sources, or Membership\(version=1, size=3\)"):
        Injection("raw", "marked", JsonField("at"), membership=slip)


@pytest.mark.parametrize("topic", ["raw", "marked"])
def test_dropped_records_return_neither_to_the_input_nor_to_the_output(topic):
    with pytest.raises(UsageError, match="use a topic of its own"):
        Injection("raw", "marked", JsonField("at"), dropped_to=topic)
