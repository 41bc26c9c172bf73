"""The command ``python -m floodmark.schemas.conformance``."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from floodmark.schemas.conformance.program import Case, Program, ProgramError
from floodmark.schemas.conformance.reader_cases import reader_cases
from floodmark.schemas.conformance.writer_cases import writer_cases
from floodmark.schemas.errors.base import printable_lines

_SHOWN: Final = 5  # failed cases
_TEXT: Final = """\
Check that a reader or a writer of watermark records conforms to SPEC.md.

The program takes lines of JSON from standard input until it ends, and prints one line of JSON for each step.  SPEC.md,
"Conformance", describes the lines.  The program runs once, with all cases.
"""
_EXAMPLES: Final = """\
examples:
  python -m floodmark.schemas.conformance --reader "java -cp reader.jar Reader"
  python -m floodmark.schemas.conformance --writer ./writer --json

exit status: 0: all cases passed; 1: a case failed; 2: the program could not be run to its end;
130: you pressed Ctrl-C
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m floodmark.schemas.conformance",
        description=_TEXT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--reader", metavar="COMMAND", help="the reader to check")
    kinds.add_argument("--writer", metavar="COMMAND", help="the writer to check")
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="SECONDS", help="how long it may print nothing (default: 60)"
    )
    parser.add_argument("--json", action="store_true", help="print the result, with all failed cases, as JSON")
    options = parser.parse_args(arguments)
    if not options.timeout > 0:
        parser.error("--timeout has to be above 0")
    cases: list[Case] = [*(writer_cases() if options.reader is None else reader_cases())]
    failed = []
    try:
        program = Program(options.writer if options.reader is None else options.reader, cases, options.timeout)
        for number, (case, answers) in enumerate(program.answers(), 1):
            if fault := case.fault(answers):
                failed.append({"case": case.name, "fault": fault, "input": [*case.begin, *case.steps]})
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{number} of {len(cases)} cases " + "\n" * (number == len(cases)))
    except ProgramError as error:
        sys.stderr.write(f"floodmark: {printable_lines(str(error))}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("floodmark: interrupted before the last case\n")
        return 130
    passed = len(cases) - len(failed)
    if options.json:
        sys.stdout.write(json.dumps({"cases": len(cases), "passed": passed, "failed": failed}) + "\n")
    else:
        for one in failed[:_SHOWN]:
            text = printable_lines(f"{one['case']}\n{one['fault']}").replace("\n", "\n  ")
            sys.stdout.write(f"failed: {text}\n")
        more = f" The first {_SHOWN} failed cases are shown; --json prints all." if len(failed) > _SHOWN else ""
        sys.stdout.write(f"{passed} of {len(cases)} cases passed.{more}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
