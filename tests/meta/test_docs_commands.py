"""Commands, files, links and programs that the pages quote: they parse, exist, lead somewhere, run."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console

from suite.__main__ import COMMANDS, application, main
from suite.acceptance.battery import BatteryReport
from suite.machine import profile as machine_profile
from suite.paths import ROOT
from suite.records.battery import BatteryEnd
from suite.report.terminal.acceptance import print_verdict

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDED = ROOT / "results" / "recorded"
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
NOXFILE = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
SESSIONS = {
    definition.name
    for definition in NOXFILE.body
    if isinstance(definition, ast.FunctionDef)
    and any(isinstance(mark, ast.Attribute) and mark.attr == "session" for mark in definition.decorator_list)
}
FILES = [path.as_posix() for room in ("suite", "reference_runs", "kernels") for path in (ROOT / room).rglob("*.py")]
# files that commands write: no part of the repository
WRITTEN = ("results/records", "results/machines", "results/acceptance", "results/baselines", "results/ladder")
WRITTEN += ("results/kernels/MACHINE", "results/index.html")


def command_lines(text: str) -> set[str]:
    """Every command that a page quotes: indented or fenced lines, inline code, a container's command."""
    text = text.replace("\\\n", " ")
    lines = re.findall(r"((?:python -m suite|\brefruns|nox -s) [^`\n]*)", text)
    lines += [code for code in re.findall(r"`([^`\n]+)`", text) if code.split()[0] in COMMANDS and " -" in code]
    lines += [re.sub(r'[,"]', "", words) for words in re.findall(r"command: \[(.*)\]", text)]
    return {re.split(r"\s#|\s\|\||;|&&", line)[0].strip(" ).") for line in lines}


QUOTED = sorted({(page, line) for page, text in TEXTS.items() for line in command_lines(text)})


def refusal(line: str) -> str:
    """The reason why a command line is wrong, or nothing."""
    words = shlex.split(line.partition("`")[0])
    if words[:2] == ["nox", "-s"]:
        rest = words.index("--") if "--" in words else len(words)
        unknown = set(words[2:rest]) - SESSIONS
        if unknown or words[2] not in COMMANDS:
            return f"no session {', '.join(unknown)}" if unknown else ""
        words = [words[2], *words[rest + 1 :]]
    elif words[0] not in COMMANDS:
        words = words[1 if words[0] == "refruns" else words.index("suite") + 1 :]
    try:
        command: Any = typer.main.get_command(application(words))
        while words and hasattr(command, "commands"):
            name, *words = words
            command = command.commands[name]
        command.make_parser(command.context_class(command)).parse_args(words)
    except (KeyError, typer.BadParameter.__mro__[2]) as error:
        return str(error)
    return ""


def test_every_quoted_command_has_a_known_name_and_known_options() -> None:
    assert len(QUOTED) > 60
    assert [f"{page}: {line}: {why}" for page, line in QUOTED if (why := refusal(line))] == []
    wrong = ["python -m suite reprodoce bloom-mini", "nox -s reproduce -- bloom-mini --rank 2", "nox -s test"]
    wrong += ["refruns predikt bloom-176b", "refruns predict bloom-176b --om h200"]
    assert all(map(refusal, wrong))
    assert command_lines("Try `refruns predict bloom-176b --on h200`, or\n\n    refruns runs  # all of them\n") == {
        "refruns predict bloom-176b --on h200",
        "refruns runs",
    }


SAMPLE = re.compile(
    r"^    refruns ((?:predict|plan|fit|validate|results show)(?: [^\n]+)?)\n\n```\n(.+?)\n```$",
    re.DOTALL | re.MULTILINE,
)


def test_samples_are_what_the_commands_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    wrong, samples = [], 0
    for page, text in TEXTS.items():
        for command, shown in SAMPLE.findall(text):
            if "PROFILE" in command or "--from" in command:  # of files that the reader measured
                continue
            samples += 1
            assert main(shlex.split(command)) in (0, 1), command
            printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
            lines = [line for line in shown.splitlines() if "..." not in line]  # shortened
            wrong += [f"{page}: {command}: {line}" for line in lines if line not in printed]
    assert samples >= 8
    assert wrong == []


def test_the_sample_of_accept_is_printed_of_a_recorded_battery() -> None:
    """The battery is the one in results/recorded/acceptance; the page shortens lines with "..." alone."""
    (shown,) = re.findall(r"^    \S+nox -s accept\n\n```\n(.+?)\n```$", TEXTS["README.md"], re.DOTALL | re.MULTILINE)
    (path,) = (RECORDED / "acceptance").glob("*.end.json")
    end = msgspec.json.decode(path.read_bytes(), type=BatteryEnd)
    same = {name: getattr(end, name) for name in ("id", "profile", "decision", "findings", "seconds")}
    out = Console(file=io.StringIO(), width=400, highlight=False)
    print_verdict(out, BatteryReport(**same, notes=[], record=""))
    printed = out.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    pieces = [piece.strip() for line in shown.splitlines() for piece in line.split("...") if piece.strip()]
    assert len(pieces) >= 4
    assert [piece for piece in pieces if piece not in printed] == []


def code_on(page: str) -> str:
    """The only Python code that a page shows."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL)
    return str(code)


def test_the_code_on_the_page_of_predictions_runs() -> None:
    command = [sys.executable, "-c", code_on("docs/predictions.md")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\[\d+\.\d+ \d+\.\d+\]\n", run.stdout)


def test_the_code_on_the_page_of_python_runs_as_a_program_of_a_user_s() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "package")}
    command = [sys.executable, "-P", "-c", code_on("docs/python.md")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(run.stdout) > 0


def test_the_code_on_the_page_of_records_reads_the_recorded_launches() -> None:
    code = code_on("docs/records.md").replace('"results"', repr(str(RECORDED)))
    *lines, last = code.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    medians = eval(last, names)
    assert len(names["launches"]) == len(list((RECORDED / "records").glob("*/*.begin.json")))
    assert (medians > 0).any()


def test_the_code_on_the_page_of_calibration_reads_a_recorded_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in (RECORDED / "machines").glob("*.json") if machine_profile.read(path).reference_steps)
    of_another_machine = (machine_profile.read(path), str(path))
    monkeypatch.setattr(machine_profile, "current_profile", lambda *_, **__: of_another_machine)
    names: dict[str, Any] = {"results": RECORDED}
    exec(code_on("docs/calibration.md"), names)
    assert names["profile"].seconds(names["forward"], 128, 672, 224) > 0
    assert names["profile"].line(names["all_reduce"]).fixed_seconds > 0


@pytest.mark.ranks
def test_the_program_on_the_page_of_1_bit_adam_runs_from_another_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code_on("docs/one_bit_adam.md"), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--log-dir", "logs", "train.py"]  # else they stay in /tmp
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    losses = [float(line.split()[1]) for line in run.stdout.splitlines()]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)


def test_the_table_on_the_page_of_published_tables_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = re.findall(r"```\n(layers,.*?)```", TEXTS["docs/published_tables.md"], re.DOTALL)
    (tmp_path / "table.csv").write_text(table, encoding="utf-8")
    assert main(["validate", str(tmp_path / "table.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["used"] == 1


def test_files_and_modules_that_pages_name_exist() -> None:
    missing = []
    for page, text in TEXTS.items():
        named = re.findall(r"`((?:suite|tests|kernels|benchmarks|reference_runs|results|docs|\.ci)/[\w./-]*)`", text)
        named = [name for name in named if not name.startswith(WRITTEN)]
        # in a table or sentence about one package, modules are named without it
        named += [name for name in re.findall(r"`([\w/]+\.py)`", text) if name not in named]
        for name in re.findall(r"`((?:suite|benchmarks|reference_runs)\.[\w.]+)`", text):
            module = name.replace(".", "/")
            choices = (module, f"{module}.py", f"{module.rpartition('/')[0]}.py")  # or a name in that module
            if not any((ROOT / choice).exists() for choice in choices):
                missing.append(f"{page}: {name}")
        for name in named:
            is_placeholder = re.search("[A-Z]{4}", name)
            if not (is_placeholder or (ROOT / name).exists() or any(file.endswith(f"/{name}") for file in FILES)):
                missing.append(f"{page}: {name}")
    assert missing == []


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_somewhere() -> None:
    broken = []
    for page in [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "results").rglob("LOG.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            path = page.parent / name if name else page
            leads = path.exists() and (not anchor or anchor in anchors(path))
            if not (leads or target.startswith("http")):
                broken.append(f"{page}: {target}")
    assert broken == []


def test_the_readme_is_short_and_shows_output_everywhere() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert not [line for line in lines if "<!--" in line or "PASTED" in line]
