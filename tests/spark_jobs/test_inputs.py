"""Queries made up from seeds over other inputs than whole topics of plain rows."""

import pytest
from support.inputs import adjusted, empty, growing, small_batches
from support.trial import differences, quick, run

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("kind", "seed"), [(adjusted, 1), (empty, 1), (empty, 2), (growing, 1), (growing, 2), (small_batches, 1)]
)
def test_a_query_over_another_input_equals_its_plain_computation(spark, kafka, topic, checkpoint, kind, seed):
    trial = kind(seed)
    assert differences(trial, run(quick(spark), kafka.config, trial, topic, checkpoint)) == [], trial.query.name
