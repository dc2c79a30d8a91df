"""Commands as functions that return what `--json` prints, and records as pandas frames."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from refruns.modules import serve

serve()

import msgspec  # noqa: E402  # a core dependency, as all below needs our packages to be served
import typer  # noqa: E402

from reference_runs.errors import InputError as InputError  # noqa: E402
from suite.__main__ import application  # noqa: E402
from suite.paths import RESULTS  # noqa: E402
from suite.records import frame as frames  # noqa: E402

_Refused: Any = typer.BadParameter.__mro__[2]  # click's exception, of typer's own click or of the package


def answers(command: str, *words: str | Path, **options: Any) -> list[dict[str, Any]]:
    """The objects that a command prints with --json: docs/python.md says where their schemas are.

    Args:
        command: for instance "predict", or "results list".
        words: its arguments, such as the name of a run or the path of a run file.
        options: its options: `network=3200` is --network 3200, `leave_out=True` is --leave-out, `compile=False` is
            --no-compile, a list is an option that is given several times, and None is left out.

    Raises:
        InputError: what the command line refuses with exit code 2.
    """
    given = [*command.split(), *map(str, words), *_options(options), "--json"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            application(given)(args=given, prog_name="refruns", standalone_mode=False)
    except _Refused as error:
        raise InputError(" ".join(str(error.format_message()).split())) from error
    return [msgspec.json.decode(line) for line in printed.getvalue().splitlines()]


def runs() -> list[dict[str, Any]]:
    """Published runs and their miniatures, an object each."""
    return answers("runs")


def show(name: str | Path) -> dict[str, Any]:
    """A run, accelerator or miniature with the sources of its values."""
    return answers("show", name)[0]


def predict(run: str | Path, **options: Any) -> dict[str, Any]:
    """Prediction of a run: `predict("gpt-neox-20b", on="h100-sxm", layout="dp8,tp8,zero1", network=3200)`.

    A run that does not fit into memory is an answer like another.

    Raises:
        InputError: as `answers`.
    """
    return answers("predict", run, **options)[0]


def fit(run: str | Path, **options: Any) -> dict[str, Any]:
    """Whether a run fits on some accelerators: `fit("llama3.1-8b", on="h100-sxm", gpus=64)`.

    Raises:
        InputError: as `answers`.
    """
    return answers("fit", run, **options)[0]


def plan(run: str | Path, **options: Any) -> dict[str, Any]:
    """The fastest layouts of a run: `plan("llama3.1-8b", on="h100-sxm", gpus=64)`.

    Raises:
        InputError: as `answers`.
    """
    return answers("plan", run, **options)[0]


def launches(results: str | Path = RESULTS) -> Any:
    """A frame with a row a launch, oldest first; columns in docs/records.md."""
    return frames.launches(results)


def figures(results: str | Path = RESULTS, **options: Any) -> Any:
    """A frame with a row a figure of a launch, predicted and measured; columns in docs/records.md."""
    return frames.figures(results, **options)


def batteries(results: str | Path = RESULTS) -> Any:
    """A frame with a row a battery of `accept`; columns in docs/records.md."""
    return frames.batteries(results)


def frame(source: Any) -> Any:
    """A frame with a row an answer of `predict`, `plan` and `fit`; columns in docs/python.md.

    Args:
        source: a file of what the commands printed with --json; or an answer, or several, as functions here return.

    Raises:
        InputError: the file cannot be read.
    """
    return frames.answers(source)


def _options(options: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            words += [f"--{option}={one}" for one in values]
    return words
