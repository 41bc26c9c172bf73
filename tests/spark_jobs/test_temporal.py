"""The recipes of the page `TEMPORAL.md`, and joins of streams: exact in each batch, over restarts and SIGKILLs."""

import os
import random

import pytest
from benchmarks import killed
from support import operators as ops
from support import recipes
from support.streams import Log, Say
from support.trial import Trial, differences, run

pytestmark = pytest.mark.spark

RECIPES = [
    ops.Query(ops.one, (recipes.looked_back,)),
    ops.Query(ops.one, (recipes.sliding_sums,)),
    ops.Query(recipes.temporal_join),
]


@pytest.mark.parametrize("query", RECIPES, ids=lambda query: query.name)
def test_a_recipe_gives_each_result_in_its_batch_over_restarts(spark, kafka, topic, checkpoint, query):
    logs = [killed.made_up(random.Random(seed), 30) for seed in range(query.source.inputs)]  # noqa: S311  # repeatable
    logs = [Log(2, [*log.entries, *(Say(source, "end") for source in log.sources)]) for log in logs]
    trial = Trial(query, logs, per_batch=40, restarts=(2, 2))
    assert differences(trial, run(spark, kafka.config, trial, topic, checkpoint)) == []


@pytest.mark.minutes
def test_recipes_and_joins_that_are_killed_equal_a_batch_computation(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    assert killed.main(kills=1, seed=2, kinds="temporal") == 0
