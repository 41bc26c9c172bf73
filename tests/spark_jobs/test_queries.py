"""Queries and streams made up from seeds, each as a job; ``benchmarks/queries.py`` runs more of them."""

import pytest
from support.query_cases import case, start_case
from support.trial import differences, quick, run

pytestmark = pytest.mark.spark

_CASES = [*((case, seed) for seed in range(1, 6)), *((start_case, seed) for seed in range(1, 4))]


@pytest.mark.parametrize(("make", "seed"), _CASES)
def test_a_query_made_up_from_a_seed_equals_its_plain_computation(spark, kafka, topic, checkpoint, make, seed):
    trial = make(seed)
    assert differences(trial, run(quick(spark), kafka.config, trial, topic, checkpoint)) == [], trial.query.name
