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

_TOLD: Final = 10_000  # records between two words of progress

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

    The Kafka of a command is that of --bootstrap-servers, or else of FLOODMARK_BOOTSTRAP_SERVERS, or else of the file
    --config, or else of FLOODMARK_CONFIG; its other settings come from the file.

    Exit status: 0 done, 1 something is wrong with the data, 2 could not; each command says what it means by that.
    """


@app.command()
def check(  # noqa: PLR0913  # each is an option of the command line
    topic: Annotated[str, typer.Argument(help="The topic to check.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    schema: Annotated[Path | None, typer.Option(help="Judge lateness: in Avro of this schema ...")] = None,
    event_time: Annotated[str | None, typer.Option(help="... or of --registry, this field is the time.")] = None,
    json_field: Annotated[str | None, typer.Option(help="Judge lateness: by this field of JSON objects.")] = None,
    unit: Annotated[str, one_of(get_args(Unit), "Unit of the JSON field since 1970.")] = "ms",
    registry: RegistryUrl = None,
    config: ConfigFile = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per finding, and one with the counts.")
    ] = False,
) -> None:
    """Check that a topic keeps its promises: every record of it, from the beginning.

    Finds late rows, regressing marks, missing and surplus members, gaps in sequences, lost and surplus rows,
    unreadable marks and rows, topics without one readable row, conflicting replays, zombies, membership conflicts, what
    comes after the end, unmarked partitions and missing headers.

    Exit status: 0 nothing is wrong, 1 something is, 2 could not check.
    """
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.producers.cli.shown_values import judged_values, registry_of
    from floodmark.producers.readers.check import checker_of, findings
    from floodmark.schemas.errors.base import printable
    from rich.console import Console

    values = judged_values(json_field, unit, schema, event_time, registry_of(registry, config))
    settings = kafka_settings(bootstrap_servers, config)
    console = Console(stderr=True)
    faults = 0
    with ended_by_signals(COULD_NOT), console.status("reading") as status:

        def progress(count: int) -> None:
            if count % _TOLD == 0:
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
    source_topic: Annotated[str, typer.Option("--from", help="The topic without watermarks.")],
    target_topic: Annotated[str, typer.Option("--to", help="The topic that gets them; at least as many partitions.")],
    bootstrap_servers: BootstrapServers = None,
    json_field: Annotated[str | None, typer.Option(help="Event time: this JSON field; a dot leads within.")] = None,
    unit: TimeUnit = None,
    schema: Annotated[Path | None, typer.Option(help="Event time: in Avro of this schema ...")] = None,
    event_time: Annotated[str | None, typer.Option(help="... or of --registry: this field.")] = None,
    registry: RegistryUrl = None,
    log_time: Annotated[bool, typer.Option(help="Event time: Kafka's own timestamp.")] = False,
    changefeed: Changefeed = None,
    early: Annotated[
        float | None, typer.Option(help="Drop events this much ahead of arrival, seconds; -1: none.")
    ] = 300,
    late: Annotated[float, typer.Option(help="Events more seconds behind their arrival are late.")] = 5,
    out_of_order: Annotated[
        float | None,
        typer.Option(help="Seconds that events may be out of order; default: as --late, by substreams 0."),
    ] = None,
    on_late: Annotated[str, one_of(get_args(Action), "What becomes of late events.")] = "adjust",
    on_out_of_order: Annotated[str, one_of(get_args(Action), "What becomes of those out of order.")] = "adjust",
    substream_by: Annotated[
        str | None, typer.Option(help="A watermark for every 'key', or every value of a JSON field.")
    ] = None,
    drop_late: Annotated[bool, typer.Option(help="Leave out what a changefeed repeats behind its promises.")] = False,
    dropped_to: Annotated[str | None, typer.Option(help="A topic for what is dropped; default: it is counted.")] = None,
    source: Annotated[str, typer.Option(help="Source id in the target topic; default: inject-<from>.")] = "",
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between transactions and marks.")] = 1,
    align: Annotated[float | None, typer.Option(help="Hold partitions more seconds ahead of the slowest.")] = None,
    decisions_from: Annotated[
        str | None, typer.Option(help="Decide as the run that wrote this topic did, not by the clock.")
    ] = None,
    until_end: Annotated[bool, typer.Option(help="Stop when all that is there has been passed on.")] = False,
    end: Annotated[bool, typer.Option(help="With --until-end: say that nothing more will come.")] = False,
    allow_unreadable: Annotated[
        bool, typer.Option(help="Start although no record tells a readable time, or all times look like seconds.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Show what would become of 1,000 records; write nothing.")] = False,
    create: Annotated[
        bool, typer.Option(help="Create the target where it is not there, with as many partitions as the input.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Share the input with the other members of this consumer group; any may die.")
    ] = None,
    reset: Annotated[bool, typer.Option(help="Begin anew: delete the target's records, all its own.")] = False,
    config: ConfigFile = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on this loopback port.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON after each transaction.")] = False,
) -> None:
    """Bring a topic without watermarks into the system, exactly once.

    Passes every record on to the same partition, byte for byte, and puts marks between them: by a time policy (how
    late, early and out of order events may be), or by the promises of a CockroachDB or TiCDC changefeed.  An event
    whose time was adjusted carries the time that counts in the header floodmark-time.  Start it again after a crash:
    it goes on where its last transaction ended.  What cannot be read is passed on and counted; where no record at all
    tells a time, it does not begin.  Ctrl-C and SIGTERM commit what was read, and end it.

    Exit status: 0 done or interrupted, 2 could not go on.
    """
    from floodmark.producers.cli.inject import inject_alone, inject_with_others, show_preview
    from floodmark.producers.cli.settings import kafka_settings, seconds
    from floodmark.producers.cli.shown_values import input_format, registry_of, substreams
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
            raise typer.BadParameter(f"a member of a group has some partitions alone: leave {given[0]} out")
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
    topic: Annotated[str, typer.Argument(help="The topic to follow.")],
    *,
    bootstrap_servers: BootstrapServers = None,
    from_beginning: Annotated[bool, typer.Option(help="Begin with the first record, not with the next.")] = False,
    until_end: Annotated[bool, typer.Option(help="Stop at what is now the end.")] = False,
    marks: Annotated[bool, typer.Option(help="Show marks only.")] = False,
    schema: Annotated[Path | None, typer.Option(help="Avro schema, to show values by.")] = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record.")] = False,
) -> None:
    """Show a topic's records and marks as people read them, with the watermark they add up to.

    Exit status: 0 done or interrupted, 2 could not read.
    """
    from floodmark.producers.cli.settings import kafka_settings
    from floodmark.producers.cli.shown_values import decoder_of, registry_of
    from floodmark.producers.readers.tail import tail_lines

    settings = kafka_settings(bootstrap_servers, config)
    decode = decoder_of(schema, registry_of(registry, config))
    with ended_by_signals(0):
        for shown in tail_lines(
            settings, topic, decode, from_beginning=from_beginning, until_end=until_end, marks_only=marks, as_json=json
        ):
            typer.echo(shown)


app.command()(board)
app.command()(catch_up)
app.command()(why)


def main() -> None:
    """Run the command.

    Installed packages add commands by the entry-point group ``floodmark.commands``: ``demo``, which imports Spark where
    that is installed.  They are loaded unless the first argument shows that none of them is asked for.
    """
    if not {"board", "catch-up", "check", "inject", "tail", "why", "--version"} & set(sys.argv[1:2]):
        from importlib.metadata import entry_points

        for command in entry_points(group="floodmark.commands"):
            app.command(command.name)(command.load())
    run_command(app)


if __name__ == "__main__":
    main()
