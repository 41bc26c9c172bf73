"""Errors have typed fields, name their blame by type, and cross processes whole."""

import pickle

import pytest
from floodmark.schemas import errors
from floodmark.schemas.errors import FloodmarkError, UnknownTopicError, UsageError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FloodmarkError)]
FAMILIES = [kind for kind in KINDS if not kind.template]


def made(kind):
    return kind(
        **{name: 7 for name in kind.__init__.__kwdefaults__ or kind.__init__.__annotations__ if name != "return"}
    )


def test_the_families_are_those_that_the_module_explains():
    assert {kind.__name__ for kind in FAMILIES} == {
        "FloodmarkError",
        "CorruptRecordError",
        "SnapshotError",
        "InfrastructureError",
        "ResultError",
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_not_raised_itself(family):
    with pytest.raises(TypeError, match="family of errors"):
        family()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.template])
def test_every_kind_keeps_its_fields_in_its_message_and_over_a_pickle(kind):
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))
    assert "{" not in str(error)


@pytest.mark.parametrize("kind", [UnknownTopicError, UsageError])
def test_a_misspelt_field_is_a_type_error(kind):
    with pytest.raises(TypeError, match="topik"):
        kind(topik="clicks")
