"""The properties of a commit: what was written comes back, and nothing damaged becomes a watermark."""

import json
from contextlib import suppress

import pytest
from floodmark.producers.tables.table_mark import TableMark, properties_in
from floodmark.schemas.errors import UnreadableTableMarkError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from hypothesis import given
from hypothesis import strategies as st

names = st.text(min_size=1, max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
marks = st.builds(
    TableMark,
    job=names,
    epoch=numbers,
    batch=numbers,
    watermark=st.none() | st.integers(EARLIEST, END_OF_TIME),
    holder=st.none() | st.builds(Holder, names, st.none() | st.integers(0, 99), st.none() | names, st.none() | names),
    position=st.none() | st.text(),
)


@given(marks)
def test_a_mark_comes_back_from_the_properties_of_both_formats(mark):
    assert (
        TableMark.of({"operation": "append"} | mark.properties()) == TableMark.of(properties_in(mark.as_json())) == mark
    )


@given(marks, st.data())
def test_damaged_properties_never_become_a_higher_watermark(mark, data):
    properties = mark.properties()
    name = data.draw(st.sampled_from(sorted({*properties} - {"floodmark.watermark"})))
    properties[name] = data.draw(st.text() | st.none() | st.integers())
    with suppress(UnreadableTableMarkError):
        assert TableMark.of(properties).watermark == mark.watermark


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("watermark", "soon"),
        ("watermark", str(END_OF_TIME + 1)),
        ("watermark", "१२"),
        ("watermark", 12),
        ("batch", None),
        ("job", ""),
        ("holder", "clicks"),
        ("holder", json.dumps({"topic": 1})),
        ("holder", json.dumps({"topic": "clicks", "partition": "0"})),
    ],
)
def test_a_property_that_cannot_be_right_is_named(name, value):
    properties = TableMark(job="daily", epoch=1, batch=1, watermark=1).properties() | {f"floodmark.{name}": value}
    with pytest.raises(UnreadableTableMarkError, match=f"floodmark.{name}"):
        TableMark.of(properties)
