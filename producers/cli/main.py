"""The command ``floodmark``."""

import sys
from collections import Counter
from dataclasses import asdict
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer
from floodmark.producers.cli.board import board, why
from floodmark.producers.cli.catch_up import catch_up
from floodmark.producers.cli.command_line import (
    COULD_NOT,
    BootstrapServers,
    ConfigFile,
    RegistryUrl,
    ended_by_signals,
    option,
    run_command,
    seconds_of,
)
from floodmark.producers.cli.trigger import trigger
from floodmark.producers.event_times.option_values import CHANGEFEEDS, Action, Unit

if TYPE_CHECKING:
    from floodmark.schemas.checker import Finding

_PROGRESS: Final = 10_000  # records between two reports of progress
_SHOWN: Final = 20  # lines of one kind of fault that `check` prints

_time, _late, _output, _running = (
    partial(option, panel=panel) for panel in ("Event time", "Late and early events", "Output", "Running")
)

_SECONDS: Final[dict[str, Any]] = {"parser": seconds_of, "metavar": "SECONDS|5min"}

app = typer.Typer(name="floodmark", no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(*, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"floodmark {version('floodmark')}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    _version: Annotated[bool, option("Print the version.", "--version", is_eager=True, callback=_show_version)] = False,
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
    schema: Annotated[Path | None, option("File with the Avro schema of the values (single-object encoding).")] = None,
    event_time: Annotated[str | None, option("Field with the event time, for --schema or --registry.")] = None,
    json_field: Annotated[str | None, option("JSON field with the event time; finds late rows.")] = None,
    unit: Annotated[
        str | None,
        option("Unit of a number, since 1970; default: ms, or Avro's logical type.", values=get_args(Unit)),
    ] = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
    json: Annotated[bool, option("Print one JSON object per fault, and a last one with the counts.", "--json")] = False,
) -> None:
    """Read a whole topic and check it against its watermarks.

    Finds late rows (with --json-field or --event-time), decreasing watermarks, missing and surplus sources, gaps in
    sequences, lost and surplus rows, unreadable marks and rows, topics without a readable row, conflicting replays,
    fenced marks ("zombie"), membership conflicts, records after the end, partitions without marks and missing headers.

    Exit status: 0 no faults, 1 faults found, 2 error.
    """
    from floodmark.producers.cli.settings import FieldOptions, judged_values, kafka_settings
    from floodmark.producers.clients.admin import LATELY, TIMEOUT, admin_client, hidden_records, require_topics
    from floodmark.producers.clients.clock import Clock
    from floodmark.producers.readers.check import checker_of, findings
    from rich.console import Console

    values = judged_values(FieldOptions(json_field, unit, schema, event_time, registry, config))
    settings = kafka_settings(bootstrap_servers, config)
    console = Console(stderr=True)
    groups: dict[tuple[Any, ...], list[Finding]] = {}  # the first and the last of each
    found = Counter[tuple[Any, ...]]()
    with ended_by_signals(COULD_NOT), console.status("reading") as status:

        def progress(count: int) -> None:
            if count % _PROGRESS == 0:
                status.update(f"{count:,} records read, {found.total():,} faults")

        checker = checker_of(settings, topic)
        try:
            for finding in findings(settings, topic, values, checker, progress):
                same = finding.fault, finding.partition, finding.source
                found[same] += 1
                groups[same] = [groups.get(same, [finding])[0], finding]
                if json:
                    typer.echo(dumps({**asdict(finding), "fault": finding.fault.value}))
        finally:
            if not json:
                _show(groups, found)
        faults, lately = found.total(), Clock().wall() - LATELY
        since = dict.fromkeys(range(require_topics(settings, [topic])[topic]), lately)
        hidden = hidden_records(admin_client(settings), settings, topic, since, TIMEOUT)
        if json:
            summary = {"topic": topic, "data": checker.records["data"], "marks": checker.records["marks"]}
            limits = {"lateness_judged": values is not None, "compacted": checker.compacted}
            unread = [str(place) for place in hidden.values()]
            typer.echo(dumps({**summary, **limits, "hidden_from": unread, "faults": faults}))
    judged = "" if values else ", lateness not judged (no --json-field or --event-time)"
    counts = f"{checker.records['data']:,} data records, {checker.records['marks']:,} marks{judged}"
    typer.echo(f"{topic}: {counts}: {faults} fault(s)", err=True)
    for place in hidden.values():
        typer.echo(f"WARNING an open transaction hides the records from {place} on: they were not checked", err=True)
    raise typer.Exit(1 if faults else 0)


def _show(groups: "dict[tuple[Any, ...], list[Finding]]", found: Counter[tuple[Any, ...]]) -> None:
    """Print a line for each kind of fault of each source in each partition, at most 20 of a kind."""
    from floodmark.schemas.errors.base import printable

    shown, hidden = Counter[str](), Counter[str]()
    for same, (first, last) in groups.items():
        kind = first.fault.value
        shown[kind] += 1
        if shown[kind] > _SHOWN:
            hidden[kind] += found[same]
            continue
        more = f"; {found[same] - 1:,} more until offset {last.offset}" if found[same] > 1 else ""
        typer.echo(printable(f"{first}{more}"))
    for kind, count in hidden.items():
        typer.echo(f"and {count:,} more: {kind} (--json prints all)", err=True)


@app.command()
def inject(  # noqa: PLR0913  # each is an option of the command line
    *,
    source_topic: Annotated[str, option("Input topic, without watermarks.", "--from")],
    target_topic: Annotated[str, option("Output topic; as many partitions (more: without --group).", "--to")],
    bootstrap_servers: BootstrapServers = None,
    json_field: Annotated[str | None, _time("JSON field with the event time; a dot separates nested names.")] = None,
    unit: Annotated[
        str | None,
        _time("Unit of a number, since 1970; default: ms, or Avro's logical type.", values=get_args(Unit)),
    ] = None,
    schema: Annotated[Path | None, _time("File with the Avro schema of the values (single-object encoding).")] = None,
    event_time: Annotated[str | None, _time("Field with the event time, for --schema or --registry.")] = None,
    registry: RegistryUrl = None,
    log_time: Annotated[bool, _time("Use Kafka's timestamp as the event time.", "--log-time")] = False,
    changefeed: Annotated[
        str | None, _time("Format of a changefeed; it has its own watermarks.", values=CHANGEFEEDS)
    ] = None,
    early: Annotated[
        float | None,
        _late("Drop events that are more than this many seconds ahead of their arrival; -1: never.", **_SECONDS),
    ] = 300,
    late: Annotated[float, _late("Maximum delay of an event in seconds; later events are late.", **_SECONDS)] = 5,
    out_of_order: Annotated[
        float | None,
        _late("Maximum out-of-orderness in seconds; default: as --late, or 0 with --substream-by.", **_SECONDS),
    ] = None,
    on_late: Annotated[str, _late("Action for late events.", values=get_args(Action))] = "adjust",
    on_out_of_order: Annotated[str, _late("Action for out-of-order events.", values=get_args(Action))] = "adjust",
    substream_by: Annotated[
        str | None,
        _late(
            "Judge the order of events per Kafka key ('key'), or per value of this JSON field, not per partition. "
            "Use it if several senders share a partition."
        ),
    ] = None,
    drop_late: Annotated[
        bool, _late("With --changefeed: drop rows below its watermark; they are repeats.", "--drop-late")
    ] = False,
    dropped_to: Annotated[
        str | None,
        _late("Copy dropped events to this existing topic, which has no marks; default: only count them."),
    ] = None,
    source: Annotated[str, _output("Source id in the output topic; default: inject-<from>.")] = "",
    interval: Annotated[
        float, _output("Seconds between transactions, and between marks; at most 10 minutes.", **_SECONDS)
    ] = 1,
    create: Annotated[
        bool, _output("Create the output topic if it does not exist, with the partitions of the input.", "--create")
    ] = False,
    reset: Annotated[
        bool,
        _output(
            "Start over: delete all records of the output topic, and copy the input again. Jobs that have read "
            "the topic must start over, too, or they count records twice. Refused if others have written to it.",
            "--reset",
        ),
    ] = False,
    end: Annotated[
        bool,
        _output(
            "With --until-end: emit the end of the source. Use it only if no more records will come: readers that have "
            "seen the end fail on them.",
            "--end",
        ),
    ] = False,
    until_end: Annotated[
        bool, _running("Stop at the current end of the input, or at an open transaction before it.", "--until-end")
    ] = False,
    dry_run: Annotated[bool, _running("Show decisions on up to 1,000 records; write nothing.", "--dry-run")] = False,
    group: Annotated[
        str | None,
        _running("Share the partitions with other processes of this consumer group; give all the same options."),
    ] = None,
    align: Annotated[
        float | None,
        _running("Pause a partition that is more than this many seconds ahead of the slowest one.", **_SECONDS),
    ] = None,
    align_topic: Annotated[
        str | None, _running("Stay near this topic, such as the last one of a chain; needs --align-bound.")
    ] = None,
    align_bound: Annotated[
        float | None,
        _running("Stop reading a partition that is more than this many seconds ahead of --align-topic.", **_SECONDS),
    ] = None,
    decisions_from: Annotated[
        str | None, _running("Output topic of an earlier run: repeat its decisions instead of following the clock.")
    ] = None,
    allow_unreadable: Annotated[
        bool,
        _running(
            "Start even if no record has a readable time, all times look like seconds, or the input has marks.",
            "--allow-unreadable",
        ),
    ] = False,
    config: ConfigFile = None,
    metrics_port: Annotated[str | None, _running("Serve Prometheus metrics: 9108, or 0.0.0.0:9108.")] = None,
    json: Annotated[
        bool, _running("Print a JSON line after each transaction; see METRICS.md for when counts begin.", "--json")
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
    from floodmark.producers.cli import settings as options
    from floodmark.producers.cli.inject import run_injection, show_preview
    from floodmark.producers.event_times.injection import Injection
    from floodmark.producers.event_times.time_policy import TimePolicy

    injection = Injection(
        source_topic,
        target_topic,
        options.input_format(
            changefeed,
            options.FieldOptions(json_field, unit, schema, event_time, registry, config),
            log_time=log_time,
        ),
        TimePolicy(
            early=None if early is None or early == -1 else options.seconds(early, "--early"),
            on_late=on_late,  # type: ignore[arg-type]  # the policy says what it knows
            on_out_of_order=on_out_of_order,  # type: ignore[arg-type]  # the same
            late=options.seconds(late, "--late"),
            out_of_order=None if out_of_order is None else options.seconds(out_of_order, "--out-of-order"),
        ),
        substream_by=options.substreams(substream_by),
        drop_late=drop_late,
        dropped_to=dropped_to,
        source=source,
        interval=options.seconds(interval, "--interval"),
        align=None if align is None else options.seconds(align, "--align"),
        allow_unreadable=allow_unreadable,
    )
    alignment = options.alignment_of(align_topic, align_bound)
    settings = options.kafka_settings(bootstrap_servers, config)
    if end and not until_end:
        raise typer.BadParameter("--end needs --until-end: a source ends only with its input")
    alone = {"--until-end": until_end, "--reset": reset, "--decisions-from": decisions_from}
    given = [name for name, value in {**alone, "--align": align is not None}.items() if value]
    if group is not None and given:
        reason = f"{given[0]} cannot be used with --group: a member reads only some of the partitions"
        raise typer.BadParameter(f"{reason}. Stop all members, and use it once without --group")
    if dry_run and (json or decisions_from is not None):
        said = "--json cannot be used with --dry-run, whose decisions are text"
        raise typer.BadParameter(said if json else "--dry-run shows new decisions: leave out --decisions-from")
    if dry_run:
        show_preview(injection, settings, reset=reset)
        return
    run_injection(
        injection,
        settings,
        group,
        create=create,
        decisions_from=decisions_from,
        reset=reset,
        alignment=alignment,
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
        bool, option("Start at the first record of the topic; default: new records.", "--from-beginning")
    ] = False,
    offset: Annotated[
        int | None, option("Start at this offset of each partition; -10: 10 offsets before its end.", "--offset", "-o")
    ] = None,
    last: Annotated[
        int | None, option("Start this many offsets before the end of each partition.", "-n", min=1)
    ] = None,
    until_end: Annotated[bool, option("Stop at the current end of the topic.", "--until-end")] = False,
    marks: Annotated[bool, option("Show marks only.", "--marks")] = False,
    schema: Annotated[Path | None, option("File with the Avro schema of the values (single-object encoding).")] = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
    json: Annotated[bool, option("Print one JSON object per record.", "--json")] = False,
) -> None:
    """Print the records and marks of a topic, and its watermark.

    Exit status: 0 done or interrupted, 2 error.
    """
    from floodmark.producers.cli.settings import decoder_of, kafka_settings
    from floodmark.producers.readers.tail import tail_lines

    if from_beginning + (offset is not None) + (last is not None) > 1:
        raise typer.BadParameter("--from-beginning, --offset and -n all say where to start: use one of them")
    if last is not None:
        offset = -last
    settings = kafka_settings(bootstrap_servers, config)
    decode = decoder_of(schema, registry, config)
    with ended_by_signals(0):
        start = 0 if from_beginning else offset
        told = partial(typer.echo, err=True)
        for line in tail_lines(
            settings, topic, decode, offset=start, until_end=until_end, marks_only=marks, as_json=json, note=told
        ):
            typer.echo(line)


app.command()(board)
app.command()(catch_up)
app.command()(trigger)
app.command()(why)


def main() -> None:
    """Run the command.

    Installed packages add commands by the entry-point group ``floodmark.commands``, such as ``demo``.  ``main`` looks
    for them only if the first argument is no command of this module: that takes time.
    """
    if not {"board", "catch-up", "check", "inject", "tail", "trigger", "why", "--version"} & set(sys.argv[1:2]):
        from importlib.metadata import entry_points

        for command in entry_points(group="floodmark.commands"):
            app.command(command.name)(command.load())
    run_command(app)


if __name__ == "__main__":
    main()
