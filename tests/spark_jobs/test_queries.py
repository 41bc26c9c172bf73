"""Queries and streams made up from seeds, each as a job; ``benchmarks/queries.py`` runs more of them."""

import pytest
from support.query_cases import case
from support.trial import differences, quick, run

pytestmark = pytest.mark.spark

_SEEDS = range(1, 11)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_query_made_up_from_a_seed_equals_its_plain_computation(spark, kafka, topic, checkpoint, seed):
    trial = case(seed)
    assert differences(trial, run(quick(spark), kafka.config, trial, topic, checkpoint)) == [], trial.query.name
