"""The command ``trigger``."""

from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import typer
from floodmark.producers.cli.command_line import BootstrapServers, ConfigFile, RegistryUrl, option
from floodmark.producers.event_times.option_values import Unit

_target, _when, _late, _running = (
    partial(option, panel=panel) for panel in ("Target (one of them)", "Periods", "Late rows", "Running")
)


def trigger(  # noqa: PLR0913  # each is an option of the command line
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics with watermarks; a period is complete when all are.")
    ] = None,
    *,
    tables: Annotated[
        list[str] | None,
        option("Table in place of topics: CATALOG.DATABASE.TABLE of pyiceberg, or a Delta path.", "--table"),
    ] = None,
    column: Annotated[str | None, option("Event time of the rows of the tables.")] = None,
    bootstrap_servers: BootstrapServers = None,
    http: Annotated[str | None, _target("POST each event as JSON to this URL, with an Idempotency-Key.")] = None,
    run: Annotated[str | None, _target("Run this shell command; the event is in FLOODMARK_* variables.")] = None,
    success: Annotated[
        str | None, _target("Write _SUCCESS into this folder: out/dt={start:%Y-%m-%d}/hour={start:%H}")
    ] = None,
    airflow: Annotated[str | None, _target("Create events of --asset in the Airflow 3 at this URL.")] = None,
    dagster: Annotated[str | None, _target("Report materializations of --asset to the Dagster at this URL.")] = None,
    asset: Annotated[str | None, _target("Asset: name or URI in Airflow, key in Dagster (a/b).")] = None,
    partition: Annotated[
        str | None, _target("Partition key; default: the start of the period as the orchestrator writes it.")
    ] = None,
    token: Annotated[
        str | None,
        _target("Bearer token for HTTP, or where it is: ${file:PATH:KEY}.", envvar="FLOODMARK_TRIGGER_TOKEN"),
    ] = None,
    every: Annotated[str, _when("Length of a period: 15min, 1h, 1d. Periods follow each other from 1970-01-01 UTC.")],
    begin: Annotated[
        str, _when("First period of a new trigger: 'now', 'earliest' or a time: 2026-01-31T08:00Z.", "--from")
    ] = "now",
    deadline: Annotated[
        str | None,
        _when(
            "Fire a period as incomplete this long after its end: 2h; default: never. "
            "A new trigger skips deadlines that have passed; without a time in --from, it first waits for a watermark."
        ),
    ] = None,
    json_field: Annotated[str | None, _late("JSON field with the event time; late rows fire a repair.")] = None,
    unit: Annotated[
        str | None,
        _late("Unit of the time field, since 1970; default: ms, or Avro's logical type.", values=get_args(Unit)),
    ] = None,
    schema: Annotated[Path | None, _late("File with the Avro schema of the values (single-object encoding).")] = None,
    event_time: Annotated[
        str | None, _late("Field with the event time, for --schema or --registry; late rows fire a repair.")
    ] = None,
    registry: RegistryUrl = None,
    repair_after: Annotated[str | None, _late("Time to collect late rows for one repair; default: 1min.")] = None,
    name: Annotated[
        str, _running("Name of the trigger, under which its position is stored; default: the topics, joined by +.")
    ] = "",
    position_topic: Annotated[str, _running("Compacted topic with the positions.")] = "floodmark-trigger",
    retry_for: Annotated[str, _running("Stop if the target refuses an event for this long.")] = "1h",
    until_end: Annotated[bool, _running("Stop at the current end of the topics.", "--until-end")] = False,
    dry_run: Annotated[bool, _running("Show what would fire now; fire and store nothing.", "--dry-run")] = False,
    config: ConfigFile = None,
    metrics_port: Annotated[str | None, _running("Serve Prometheus metrics: 9108, or 0.0.0.0:9108.")] = None,
    json: Annotated[bool, _running("Print each event as a JSON line.", "--json")] = False,
) -> None:
    """Fire once for each complete period of topics or tables: a POST, a command, a _SUCCESS file, Airflow or Dagster.

    A period is complete when the watermark of all topics has reached its end. The command stores its position in a
    compacted topic before and after each event. After a crash it fires the last event again, with the same key, and
    misses none. A second process with the same --name stops the first.

    If the target fails, the command tries again, and the position does not move.

    --from applies to the first start only, which reads the topics from their beginning to know all sources. 'now'
    begins with the period that contains the watermark; 'earliest' with the earliest row if you name the event time
    (--json-field or --event-time), else just before the first watermark.

    Exit status: 0 interrupted, or the topics have ended, or --until-end; 2 error, such as a target that fails too long.
    """
    from floodmark.producers.cli.firing import begin_of, fire_periods, name_of, target_of
    from floodmark.producers.cli.settings import FieldOptions, judged_values, kafka_settings
    from floodmark.producers.trigger.plan.periods import duration
    from floodmark.producers.trigger.plan.schedule import Rules
    from floodmark.producers.trigger.table_input import TableInput
    from floodmark.producers.trigger.topic_input import TopicInput
    from floodmark.producers.trigger.trigger_loop import Pace
    from floodmark.schemas.errors import UsageError

    names = tuple(sorted({*(topics or ()), *(tables or ())}))
    if bool(topics) == bool(tables) or bool(tables) != (column is not None):
        raise UsageError(reason="name topics, or --table with --column, and not both")
    if tables and begin == "earliest":
        raise UsageError(reason="a table has no --from earliest: pass 'now', or a time")
    kafka = kafka_settings(bootstrap_servers, config)
    times = judged_values(FieldOptions(json_field, unit, schema, event_time, registry, config))
    if (times is not None and tables) or (times is None and repair_after is not None):
        reason = "--repair-after needs --json-field or --event-time, and these need topics: late rows of tables"
        raise UsageError(reason=f"{reason} are not seen")
    width = duration(every, "--every")
    overdue = None if deadline is None else duration(deadline, "--deadline")
    rules = Rules(name_of(name, names), names, width, overdue, tables=bool(tables))
    places = {"--http": http, "--run": run, "--success": success, "--airflow": airflow, "--dagster": dagster}
    fire_periods(
        kafka,
        rules,
        target_of(places, asset, partition, token, width),
        opens=partial(TopicInput, kafka, list(names), times) if column is None else partial(TableInput, names, column),
        begin=begin_of(begin),
        judges=times is not None,
        pace=Pace(duration(retry_for, "--retry-for") / 1_000, duration(repair_after or "1min", "--repair-after")),
        position_topic=position_topic,
        metrics_port=metrics_port,
        until_end=until_end,
        dry_run=dry_run,
        as_json=json,
    )
