"""The command ``floodmark``."""

import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Final, get_args

import typer
from floodmark.producers.cli.board import board, why
from floodmark.producers.cli.catch_up import catch_up
from floodmark.producers.cli.command_line import (
    COULD_NOT,
    BootstrapServers,
    Changefeed,
    ConfigFile,
    RegistryUrl,
    TimeUnit,
    ended_by_signals,
    one_of,
    run_command,
)
from floodmark.producers.event_times.choices import Action, Unit

_PROGRESS: Final = 10_000  # records between two reports of progress

_EVENT_TIME: Final = "Event time"
_LATE: Final = "Late and early events"
_OUTPUT: Final = "Output"
_RUN: Final = "Running"

app = typer.Typer(
    name="floodmark",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _show_version(*, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"floodmark {version('floodmark')}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """In-band watermarks for Kafka and Spark: topics that know how complete they are.

    Commands take Kafka's address from --bootstrap-servers, FLOODMARK_BOOTSTRAP_SERVERS, --config or FLOODMARK_CONFIG,
    in this order, and other settings from the config file.

    Exit status: 0 success, 1 problems found in the data, 2 error.  The help of a command has the details.
    """


@app.command()
def check(  # noqa: PLR0913  # each is an option of the command line
    topic: Annotated[str, typer.Argument(help="Topic to check.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    schema: Annotated[
        Path | None, typer.Option(help="File with the Avro schema of the values; finds late rows.")
    ] = None,
    event_time: Annotated[str | None, typer.Option(help="Avro field with the event time.")] = None,
    json_field: Annotated[str | None, typer.Option(help="JSON field with the event time; finds late rows.")] = None,
    unit: Annotated[str, one_of(get_args(Unit), "Unit of the JSON field, since 1970.")] = "ms",
    registry: RegistryUrl = None,
    config: ConfigFile = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per fault, and a last one with the counts.")
    ] = False,
) -> None:
    """Read a whole topic and check it against its watermarks.

    Finds late rows, decreasing watermarks, missing and surplus members, gaps in sequences, lost and surplus rows,
    unreadable marks and rows, topics without a readable row, conflicting replays, zombies, membership conflicts,
    records after the end, partitions without marks and missing headers.

    Exit status: 0 no faults, 1 faults found, 2 error.
    """
    from floodmark.producers.cli.input_formats import judged_values, registry_of
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.producers.readers.check import checker_of, findings
    from floodmark.schemas.errors.base import printable
    from rich.console import Console

    values = judged_values(json_field, unit, schema, event_time, registry_of(registry, config))
    settings = kafka_settings(bootstrap_servers, config)
    console = Console(stderr=True)
    faults = 0
    with ended_by_signals(COULD_NOT), console.status("reading") as status:

        def progress(count: int) -> None:
            if count % _PROGRESS == 0:
                status.update(f"{count:,} records read")

        checker = checker_of(settings, topic)
        for finding in findings(settings, topic, values, checker, progress):
            faults += 1
            typer.echo(dumps({**asdict(finding), "fault": finding.fault.value}) if json else printable(str(finding)))
        if json:
            summary = {"topic": topic, "data": checker.records["data"], "marks": checker.records["marks"]}
            typer.echo(dumps({**summary, "lateness_judged": values is not None, "faults": faults}))
    judged = "" if values else ", lateness not judged (no --schema or --json-field)"
    counts = f"{checker.records['data']:,} data records, {checker.records['marks']:,} marks{judged}"
    typer.echo(f"{topic}: {counts}: {faults} fault(s)", err=True)
    raise typer.Exit(1 if faults else 0)


@app.command()
def inject(  # noqa: PLR0913  # each is an option of the command line
    *,
    source_topic: Annotated[str, typer.Option("--from", help="Input topic, without watermarks.")],
    target_topic: Annotated[str, typer.Option("--to", help="Output topic; needs at least as many partitions.")],
    bootstrap_servers: BootstrapServers = None,
    json_field: Annotated[
        str | None,
        typer.Option(help="JSON field with the event time; a dot separates nested names.", rich_help_panel=_EVENT_TIME),
    ] = None,
    unit: TimeUnit = None,
    schema: Annotated[
        Path | None, typer.Option(help="File with the Avro schema of the values.", rich_help_panel=_EVENT_TIME)
    ] = None,
    event_time: Annotated[
        str | None, typer.Option(help="Avro field with the event time.", rich_help_panel=_EVENT_TIME)
    ] = None,
    registry: RegistryUrl = None,
    log_time: Annotated[
        bool, typer.Option("--log-time", help="Use Kafka's timestamp as the event time.", rich_help_panel=_EVENT_TIME)
    ] = False,
    changefeed: Changefeed = None,
    early: Annotated[
        float | None,
        typer.Option(
            help="Drop events that are more than this many seconds ahead of their arrival; -1: never.",
            rich_help_panel=_LATE,
        ),
    ] = 300,
    late: Annotated[
        float,
        typer.Option(help="Maximum delay of an event in seconds; later events are late.", rich_help_panel=_LATE),
    ] = 5,
    out_of_order: Annotated[
        float | None,
        typer.Option(
            help="Maximum out-of-orderness in seconds; default: as --late, or 0 with --substream-by.",
            rich_help_panel=_LATE,
        ),
    ] = None,
    on_late: Annotated[str, one_of(get_args(Action), "Action for late events.", _LATE)] = "adjust",
    on_out_of_order: Annotated[str, one_of(get_args(Action), "Action for out-of-order events.", _LATE)] = "adjust",
    substream_by: Annotated[
        str | None,
        typer.Option(help="One watermark per 'key', or per value of this JSON field.", rich_help_panel=_LATE),
    ] = None,
    drop_late: Annotated[
        bool,
        typer.Option(
            "--drop-late", help="Drop rows that a changefeed repeats behind its watermark.", rich_help_panel=_LATE
        ),
    ] = False,
    dropped_to: Annotated[
        str | None, typer.Option(help="Topic for dropped events; default: only count them.", rich_help_panel=_LATE)
    ] = None,
    source: Annotated[
        str, typer.Option(help="Source id in the output topic; default: inject-<from>.", rich_help_panel=_OUTPUT)
    ] = "",
    interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds between transactions, and between marks.", rich_help_panel=_OUTPUT)
    ] = 1,
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Create the output topic if it does not exist, with the partitions of the input.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    reset: Annotated[
        bool,
        typer.Option(
            "--reset",
            help="Start over: delete all records of the output topic. Refused if others have written to it.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    end: Annotated[
        bool,
        typer.Option(
            "--end", help="With --until-end: emit the end of the source. This is final.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the current end of the input.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the decisions on 1,000 records; write nothing.", rich_help_panel=_RUN),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            help="Share the partitions with other processes of this consumer group.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    align: Annotated[
        float | None,
        typer.Option(
            help="Pause a partition that is more than this many seconds ahead of the slowest one.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    decisions_from: Annotated[
        str | None,
        typer.Option(
            help="Repeat the decisions of an earlier run, from its output topic; ignore the clock.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    allow_unreadable: Annotated[
        bool,
        typer.Option(
            "--allow-unreadable",
            help="Start even if no record has a readable time, or all times look like seconds.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    config: ConfigFile = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics on this loopback port.", rich_help_panel=_RUN)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line after each transaction.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Copy a topic without watermarks to a new topic with watermarks, exactly once.

    Each record goes to the same partition, byte for byte, with marks in between.  The watermarks come from a time
    policy (how late, early and out of order events may be) or from a CockroachDB or TiCDC changefeed.  If the policy
    adjusts the time of an event, the header floodmark-time has the adjusted time.

    After a crash, start the command again: it resumes after its last transaction.  It copies and counts records that it
    cannot read.  It does not start if no record has a readable time.  Ctrl-C and SIGTERM commit and stop.

    Exit status: 0 done or interrupted, 2 error.
    """
    from floodmark.producers.cli.inject import inject_alone, inject_with_others, show_preview
    from floodmark.producers.cli.input_formats import input_format, registry_of, substreams
    from floodmark.producers.cli.settings import kafka_settings, seconds
    from floodmark.producers.clients.admin import create_topics, require_topics
    from floodmark.producers.event_times.injection import Injection
    from floodmark.producers.event_times.time_policy import TimePolicy

    injection = Injection(
        source_topic,
        target_topic,
        input_format(
            changefeed, json_field, unit, schema, event_time, registry_of(registry, config), log_time=log_time
        ),
        TimePolicy(
            early=None if early is None or early == -1 else seconds(early, "--early"),
            on_late=on_late,  # type: ignore[arg-type]  # the policy says what it knows
            on_out_of_order=on_out_of_order,  # type: ignore[arg-type]  # the same
            late=seconds(late, "--late"),
            out_of_order=None if out_of_order is None else seconds(out_of_order, "--out-of-order"),
        ),
        substream_by=substreams(substream_by),
        drop_late=drop_late,
        dropped_to=dropped_to,
        source=source,
        interval=seconds(interval, "--interval"),
        align=None if align is None else seconds(align, "--align"),
        allow_unreadable=allow_unreadable,
    )
    settings = kafka_settings(bootstrap_servers, config)
    if dry_run:
        show_preview(injection, settings)
        return
    if create:
        create_topics(settings, {target_topic: require_topics(settings, [source_topic])[source_topic]})
    if group is not None:
        alone = {"--until-end": until_end, "--end": end, "--reset": reset, "--decisions-from": decisions_from}
        given = [name for name, value in alone.items() if value]
        if given:
            raise typer.BadParameter(
                f"{given[0]} cannot be used with --group: a member reads only some of the partitions"
            )
        inject_with_others(injection, settings, group, metrics_port=metrics_port, as_json=json)
        return
    inject_alone(
        injection,
        settings,
        decisions_from=decisions_from,
        reset=reset,
        metrics_port=metrics_port,
        until_end=until_end,
        end=end,
        as_json=json,
    )


@app.command()
def tail(  # noqa: PLR0913  # each is an option of the command line
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the first record of the topic; default: new records.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", help="Start at this offset of each partition; -10: 10 offsets before its end."),
    ] = None,
    until_end: Annotated[bool, typer.Option("--until-end", help="Stop at the current end of the topic.")] = False,
    marks: Annotated[bool, typer.Option("--marks", help="Show marks only.")] = False,
    schema: Annotated[Path | None, typer.Option(help="File with the Avro schema of the values.")] = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record.")] = False,
) -> None:
    """Print the records and marks of a topic, and its watermark.

    Exit status: 0 done or interrupted, 2 error.
    """
    from floodmark.producers.cli.input_formats import decoder_of, registry_of
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.producers.readers.tail import tail_lines

    if from_beginning and offset is not None:
        raise typer.BadParameter("--from-beginning and --offset both say where to start: use one of them")
    settings = kafka_settings(bootstrap_servers, config)
    decode = decoder_of(schema, registry_of(registry, config))
    with ended_by_signals(0):
        for shown in tail_lines(
            settings,
            topic,
            decode,
            offset=0 if from_beginning else offset,
            until_end=until_end,
            marks_only=marks,
            as_json=json,
        ):
            typer.echo(shown)


app.command()(board)
app.command()(catch_up)
app.command()(why)


def main() -> None:
    """Run the command.

    Installed packages add commands by the entry-point group ``floodmark.commands``, such as ``demo``.  ``main`` loads
    them only if the first argument is no command of this module, because ``demo`` imports Spark.
    """
    if not {"board", "catch-up", "check", "inject", "tail", "why", "--version"} & set(sys.argv[1:2]):
        from importlib.metadata import entry_points

        for command in entry_points(group="floodmark.commands"):
            app.command(command.name)(command.load())
    run_command(app)


if __name__ == "__main__":
    main()
