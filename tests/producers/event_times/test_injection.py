"""What an injection refuses before it begins."""

import pytest
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.schemas.errors import UsageError


@pytest.mark.parametrize("slip", [0, True, "3", None, (1, 3)])
def test_a_membership_that_is_none_is_refused(slip):
    with pytest.raises(UsageError, match=r"expected a number of sources, or Membership\(version=1, size=3\)"):
        Injection("raw", "marked", JsonField("at"), membership=slip)
