"""Queries and streams made up from seeds, each as a job; ``benchmarks/queries.py`` runs more of them."""

import pytest
from support.query_cases import case, start_case
from support.trial import differences, run

pytestmark = pytest.mark.spark

_CASES = [(case, 1), (case, 3), (case, 5), (start_case, 1), (start_case, 3)]


@pytest.mark.parametrize(("make", "seed"), _CASES)
def test_a_query_made_up_from_a_seed_equals_its_plain_computation(spark, kafka, topic, checkpoint, make, seed):
    trial = make(seed)
    assert differences(trial, run(spark, kafka.config, trial, topic, checkpoint)) == [], trial.query.name
