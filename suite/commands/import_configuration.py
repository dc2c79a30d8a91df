"""A run file from the configuration of a model, so that nobody types its facts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reference_runs.borrowed_recipe import borrowed_facts, borrowed_source
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.hugging_face.families import Imported, imported
from reference_runs.run_text import run_text
from suite.commands.options import print_json
from suite.predict.analytic.parameters import parameter_count
from suite.report.terminal.tables import console, print_folded


def import_command(
    configuration: Annotated[
        Path, typer.Argument(help="A config.json of Hugging Face's transformers.", show_default=False, readable=False)
    ],
    output: Annotated[
        Path | None, typer.Option(help="The run file to write, a new one; without it, stdout.", show_default=False)
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a training sequence, where it is not the longest allowed.", min=1)
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Recorded run whose recipe is assumed where the configuration has none.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="What was imported as one JSON object; needs --output.")] = False,
) -> None:
    """Write a run file from the configuration of a Hugging Face model: its architecture, and what it says of training.

    The file answers for parameters at once (`show`), for memory with a layout and a precision. What the configuration
    does not say is not invented; with --recipe it is assumed as in a recorded run, for `reproduce --mini`. A key that
    changes the arithmetic in a way that no key of a run file describes is refused by name; the others that nothing
    comes from are listed.

    Examples: python -m suite import config.json;
    python -m suite import config.json --sequence 4096 --recipe llama2-70b --output my_run.toml

    Exit codes: 0 written; 2 bad input, or a configuration that is not described.
    """
    if json and output is None:
        raise InputError("the run file itself goes to stdout", allowed="with --output", where="--json")
    if output is not None and output.suffix != ".toml":
        raise InputError("not a run file's name", got=str(output), allowed="one ending in .toml", where="--output")
    run = imported(configuration, sequence=sequence)
    if recipe is not None:
        lender = reference_run(recipe)
        borrowed = borrowed_facts(lender, run.facts)
        run = run._replace(facts=run.facts | borrowed, sources=run.sources | borrowed_source(lender))
    text = run_text(run.title, run.sources, run.facts, comments=_comments(configuration, run))
    if output is None:
        sys.stdout.write(text)
    else:
        _write(output, text)
    if json:
        print_json(
            {
                "run": str(output),
                "title": run.title,
                "parameters": parameter_count(run.architecture),
                "notes": run.notes,
                "not_used": run.not_used,
            }
        )
        return
    words = console(stderr=True)
    written = f"{output}: " if output else ""
    print_folded(words, f"{written}{run.title}, {parameter_count(run.architecture):,} parameters", "bold")
    for note in run.notes:
        print_folded(words, f"not described: {note}", "yellow")
    if run.not_used:
        print_folded(words, f"not used: {', '.join(run.not_used)}")


def _comments(configuration: Path, run: Imported) -> list[str]:
    made = f"Imported from {configuration.name} by `python -m suite import`."
    return [made, *(f"Not described: {note}." for note in run.notes)]


def _write(path: Path, text: str) -> None:
    """Write a new file.

    Raises:
        InputError: it exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        what = "the file exists, and is not overwritten"
        raise InputError(what, got=str(path), allowed="a new name", where="--output") from error
    except OSError as error:
        raise InputError(f"cannot write there: {error.strerror}", got=str(path), where="--output") from error
