"""Mutated bytes into everything that reads from outside: ten million inputs, none of which may break a law.

    PYTHONPATH=tests python tests/fuzz/run.py --inputs 10000000

With atheris installed (``floodmark[fuzz]``) the inputs follow the coverage of the code; ``--engine random`` needs
nothing and repeats exactly from its seed.  A broken law is named with its input in hex; ``--input HEX`` runs it again.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' own folder, where `fuzz` is found


def run_atheris(target: str, inputs: int, seed: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris  # noqa: PLC0415  # an extra

    with atheris.instrument_imports(include=["floodmark"], enable_loader_override=False):
        from fuzz.targets import TARGETS  # noqa: PLC0415  # instrumented as it is imported
    chosen = TARGETS[target]
    folder = tempfile.mkdtemp(prefix="floodmark-fuzz-")
    for number, data in enumerate(chosen.seeds):
        Path(folder, f"seed-{number}").write_bytes(data)
    options = [
        f"-runs={inputs}",
        f"-seed={seed}",
        f"-max_len={chosen.longest}",
        f"-artifact_prefix={folder}/",
        "-timeout=30",
    ]
    atheris.Setup([sys.argv[0], *options, folder], chosen.law)
    atheris.Fuzz()


def run_random(target: str, inputs: int, seed: int) -> None:
    """Fuzz one target with seeded mutations."""
    from fuzz.mutate import mutated  # noqa: PLC0415  # beside the other engine
    from fuzz.targets import TARGETS  # noqa: PLC0415

    chosen = TARGETS[target]
    for data in mutated(chosen.seeds, inputs, chosen.longest, Random(f"{seed} {target}")):  # noqa: S311  # a repeatable search
        try:
            chosen.law(data)
        except Exception:  # noqa: BLE001  # whatever it is, it is what we look for
            sys.stderr.write(f"{traceback.format_exc()}\ninput: {data.hex()}\n")
            sys.exit(1)


def _found(stderr: str) -> str:
    """Return what a failed run says: its error and its input."""
    artifact = re.search(r"Test unit written to (\S+)", stderr)
    data = Path(artifact.group(1)).read_bytes().hex() if artifact else (re.findall(r"input: (\w*)", stderr) or [""])[-1]
    lines = [line for line in stderr.splitlines() if "Error" in line]
    return f"{lines[0].strip() if lines else stderr[-500:]}\n  again: --input {data}"


def main(
    inputs: Annotated[int, typer.Option(help="How many inputs, over all targets.")] = 10_000_000,
    engine: Annotated[str, typer.Option(help="atheris, random, or auto: atheris where it is installed.")] = "auto",
    seed: Annotated[int, typer.Option(help="Where the search begins.")] = 1,
    target: Annotated[str, typer.Option(help="One target alone.")] = "",
    input: Annotated[str, typer.Option(help="Run one input, in hex, with --target.")] = "",  # noqa: A002  # its name on the command line
    child: Annotated[bool, typer.Option(hidden=True)] = False,  # noqa: FBT002  # an option
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for machines.")] = False,  # noqa: FBT002
) -> None:
    """Run the search."""
    from fuzz.targets import TARGETS  # noqa: PLC0415  # a child imports them instrumented

    if input:
        TARGETS[target].law(bytes.fromhex(input))
        return
    if engine == "auto":
        engine = "atheris" if find_spec("atheris") else "random"
    names = [target] if target else list(TARGETS)
    whole = sum(TARGETS[name].share for name in names)
    results, failed = [], False
    with Progress(disable=as_json, transient=True) as bars:
        bar = bars.add_task("fuzzing", total=inputs)
        for name in names:
            count = round(inputs * TARGETS[name].share / whole)
            bars.update(bar, description=name)
            command = [sys.executable, __file__, "--child", "--target", name, "--engine", engine]
            began = time.monotonic()
            done = subprocess.run(  # ourselves
                [*command, "--inputs", str(count), "--seed", str(seed)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
                },
            )
            seconds = time.monotonic() - began
            broken = _found(done.stdout + done.stderr) if done.returncode else None
            failed |= broken is not None
            results.append({"target": name, "inputs": count, "seconds": round(seconds, 1), "broken": broken})
            bars.update(bar, advance=count)
            if not as_json:
                rate = f"{count:>10,} inputs in {seconds:7.1f} s"
                bars.console.print(f"{name:<10} {rate}  {broken or 'no law broken'}", markup=False, highlight=False)
    if as_json:
        sys.stdout.write(json.dumps({"engine": engine, "seed": seed, "targets": results}) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if "--child" in sys.argv:
        given = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=False))
        run = run_atheris if given["--engine"] == "atheris" else run_random
        run(given["--target"], int(given["--inputs"]), int(given["--seed"]))
    else:
        typer.run(main)
