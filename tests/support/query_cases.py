"""Queries and streams made up from a seed, for the generator of queries.

One seed, one case: the same query, the same records and marks at the same offsets, the same size of batches and the
same restarts.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support import operators as ops
from support.streams import Log, Put, Say
from support.trial import Trial

_BEGIN = 1_000_000
_WIDTHS = [1_000, 3_000, 5_000, 10_000, 7_777, 20_000]
_PLAIN = (ops.renumbered, ops.filtered, ops.since(_BEGIN + 8_000), ops.exploded)
_PYTHON = (ops.udf, ops.pandas_udf)


def case(seed: int) -> Trial:
    chance = random.Random(seed)  # noqa: S311  # a repeatable case
    query = _query(chance)
    most = 1 if any(step.ordered for step in query.steps) else 3
    logs = [_log(chance, most, alone=query.source.inputs == 1) for _ in range(query.source.inputs)]
    size = max(len(log.entries) for log in logs)
    write: dict[str, Any] = {}
    if chance.random() < 0.3 and _whole_windows(query):
        write["windows_close"] = "at"
    if chance.random() < 0.15:
        write["delivery"] = "at-least-once"
    restarts = [chance.randrange(1, 5) for _ in range(chance.choice([0, 0, 0, 1, 2]))]
    return Trial(query, logs, max(6, size // chance.randrange(2, 9)), restarts, write, outputs=chance.randrange(1, 3))


def lost_case(seed: int) -> Trial:
    """Make a query up whose checkpoint is lost, twice at most, so that it goes on behind what it has published."""
    trial, chance = case(seed), random.Random(-seed)  # noqa: S311  # a repeatable case
    restarts = [chance.randrange(1, 4) for _ in range(chance.choice([1, 1, 2]))]
    return replace(trial, lost=True, restarts=restarts)


def start_case(seed: int) -> Trial:
    """Make a query up that begins at a time of its output."""
    trial, chance = case(seed), random.Random(-seed)  # noqa: S311  # a repeatable case
    times = [time for log in trial.logs for _, time, _ in log.rows] or [_BEGIN]
    return replace(trial, output_at=chance.randrange(_BEGIN, max(times) + 1))


def _whole_windows(query: ops.Query) -> bool:
    """Tell whether no operator compares raw event times, so that windows may close at their end."""
    stateful = [step.name.split()[0] for step in query.steps if step.stateful]
    return not query.source.stateful and stateful != [] and set(stateful) <= {"tumbling", "sliding", "min_by,", "SQL"}


def _query(chance: random.Random) -> ops.Query:
    source = _source(chance)
    steps: list[ops.Step] = []
    _maybe(chance, steps, 0.35, [*_PLAIN, *_PYTHON, ops.static_join("inner"), ops.static_join("left")])
    if source.event_time and chance.random() < 0.12:
        # Spark loses its event time in Python, and gets it back; a time that lies back needs a watermark that does so.
        back = source.stateful or chance.random() < 0.5
        steps += [ops.mapped_in_pandas, ops.again] if back else [ops.floored(1_000)]
    for left in reversed(range(chance.choice([0, 1, 1, 1, 2, 2]) if source.event_time else 0)):
        first = source.inputs == 1 and not any(step.stateful for step in steps)
        aggregated = any(each.aggregates for each in (source, *steps))
        steps.append(_stateful(chance, first=first, last=not left, aggregated=aggregated))
        _maybe(chance, steps, 0.2, _PLAIN)
    _maybe(chance, steps, 0.25, [*_PLAIN, *_PYTHON, ops.mapped_in_pandas])
    behind = any(step.name.startswith("applyInPandasWithState") for step in steps)
    if behind and steps[-1].name in {"udf", "pandas udf"}:
        steps.pop()  # Spark itself fails there: what this operator returns is no UnsafeRow
    return ops.Query(source, tuple(steps))


def _maybe(chance: random.Random, steps: list[ops.Step], probability: float, kinds: Sequence[Any]) -> None:
    if chance.random() < probability:
        steps.append(chance.choice(kinds))


def _source(chance: random.Random) -> ops.Source:
    pick = chance.random()
    if pick < 0.45:
        return ops.one
    if pick < 0.6:
        return chance.choice([ops.union, ops.together])
    if pick < 0.9:
        kinds, bounds = ["inner", "left", "right", "full", "semi"], [0, 1, 500, 4_000, 9_999]
        return ops.joined(chance.choice(kinds), chance.choice(bounds))
    return ops.joined_windows(chance.choice(_WIDTHS))


def _stateful(chance: random.Random, *, first: bool, last: bool, aggregated: bool) -> ops.Step:
    width, slide = chance.choice(_WIDTHS), chance.choice([500, 2_592, 3_333])
    stamp = chance.choice(["end", "end", "start", "earliest", "latest"]) if last else "end"
    kinds = {
        ops.tumbling(width, stamp): 25,
        ops.sliding(slide * 2, slide): 15,
        ops.sliding(slide * 3, slide): 5,
        ops.session(chance.choice([500, 2_000, 4_321]), "end" if stamp in {"end", "start"} else "latest"): 20,
        ops.deduplicated: 8,
        ops.deduplicated_within(chance.choice([1, 1_000, 20_000])): 4,
        ops.first_and_last(width): 7,
        ops.viewed(width): 5,
        ops.sliding(width, width, stamp, beside=chance.choice(_WIDTHS)): 8,
        ops.sliding(slide * 2, slide, beside=chance.choice(_WIDTHS)): 4,
        ops.crossed(width, chance.choice(_WIDTHS)): 4,
        ops.per_time(width): 4,
    }
    if first:
        kinds[ops.first_within(chance.choice([500, 2_000, 10_000]))] = 20
    if last:  # Spark's event time ends with them
        kinds |= {ops.timers(width): 3, ops.seen_once: 3}
        if not aggregated:  # Spark takes it after no aggregation
            kinds[ops.pandas_state(width)] = 6
    return chance.choices(list(kinds), list(kinds.values()))[0]


def _log(chance: random.Random, most: int, *, alone: bool) -> Log:
    """Make the log of a topic up: sources out of order, each with a perfect watermark, some of them idle at times.

    Unless the topic is ``alone``, one source stays: rows after an idle topic may be behind those of the others.
    """
    partitions = min(most, chance.choice([1, 1, 2, 3]))
    used = chance.randrange(1, partitions + 1)  # the others stay empty
    promised = {f"s{number}": _BEGIN for number in range(chance.choice([1, 1, 2, 3]))}
    spread = chance.choice([2_000, 10_000, 30_000])
    states, log, highest = dict.fromkeys(promised, "new"), Log(partitions), _BEGIN
    for _, source in itertools.product(range(chance.randrange(3, 9)), promised):
        turn = _turn(chance, states[source], may_rest=alone or source != "s0")
        if turn in {"idle", "end"}:
            states[source] = turn
            log.entries.append(Say(source, turn))
        elif turn == "write":
            if states[source] == "idle":
                # The others went on without it: what it brings now must not be behind what they let readers believe.
                promised[source] = max(promised[source], highest)
            rows = [_row(chance, promised[source], spread) for _ in range(chance.randrange(0, 9))]
            if rows and chance.random() < 0.3:
                rows.append(chance.choice(rows))
            if rows or states[source] != "idle":
                states[source] = "active"
                log.entries += [Put(source, row, chance.randrange(used)) for row in rows]
                promised[source] += chance.choice([0, 1, 999, 1_000, chance.randrange(spread), spread])
                log.entries.append(Say(source, promised[source]))
            highest = max(highest, promised[source])
    log.entries += [
        Say(source, "end") for source in chance.sample(list(states), len(states)) if states[source] != "end"
    ]
    return log


def _turn(chance: random.Random, state: str, *, may_rest: bool) -> str:
    """Choose whether a source writes, falls idle, ends, or is silent for once."""
    if state == "end":
        return "silent"
    pick, may_rest = chance.random(), may_rest and state != "new"
    if may_rest and state != "idle" and pick < 0.08:
        return "idle"
    if may_rest and pick > 0.97:
        return "end"
    return "silent" if pick < 0.2 else "write"


def _row(chance: random.Random, promised: int, spread: int) -> tuple[str, int, int]:
    time = promised + chance.choice([0, 1, chance.randrange(spread), chance.randrange(spread) // 1_000 * 1_000])
    return chance.choice("abc"), time, chance.randrange(100)
