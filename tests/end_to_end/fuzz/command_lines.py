"""Command lines that are wrong in one to three places, of every command, with the files that they name."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import typer

from suite.__main__ import COMMANDS, GROUPS, application
from tests.end_to_end.fuzz.damage import HOSTILE, damaged
from tests.end_to_end.fuzz.parsers import PARSERS, Parser

TEXT = "a corpus of a few words, again and again\n" * 400
NUMBERS = (
    *("0", "-1", "-0", "1", "2", "3", "7", "0.5", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "1e400", "9e29"),
    *("9223372036854775807", "-9223372036854775808", "99999999999999999999", "100000007", "9" * 5000, "1_0", "0x10"),
    *("\u0663", "1e", "", " 5", "5 ", "1,000", "--", "[1]"),
)
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
WORDS = (
    *(
        "",
        " ",
        "-",
        "--",
        "-x",
        "=1+1",
        "nothing",
        "../..",
        "/",
        "/etc/passwd",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
    ),
    *(
        ESCAPES,
        "a\nb",
        "a\r\nb",
        "\t",
        "'''",
        '"""',
        "$(touch x)",
        "`x`",
        ";x",
        "[red]x",
        "[/]",
        "[/red]",
        "[link=x]y",
        "{0}",
    ),
    *(
        "{",
        "%s%n",
        "%",
        "\\",
        "*",
        "?",
        "[",
        "~",
        "~nobody",
        "a" * 20_000,
        "dp1," * 2000,
        "\udcff\udcfe",
        "\u0000"[:0] + "nul",
    ),
    *("dp0", "dp9999999999999999999", "dp2,dp2", "tp3,pp5", "micro0", "latest", "all", "none", "0", "NaN", "1..0", ","),
    *(
        "bloom-176b",
        "bloom-mini",
        "gpt2-124m",
        "h100-sxm",
        "7d",
        "2026-13-45",
        "ok",
        "cpu",
        "cuda:99",
        "localhost",
        "::1",
    ),
)
NAMES = (
    "x",
    f"x{ESCAPES}",
    "a\nb",
    "-x",
    "=x",
    "'''",
    '"""',
    "[red]",
    "[/]",
    "%s",
    "$(touch x)",
    "\udcff",
    "a" * 240,
    ".",
)
STREAMS = ("file", "file", "file", "file", "full", "nobody reads", "closed", "ascii")
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "COLUMNS": ("0", "-1", "1", "2", "7", "99999999999", "nan", "", "x"),
    "LINES": ("0", "-1", "x"),
    "TERM": ("", "dumb", "nothing"),
    "NO_COLOR": ("", "1"),
    "HOME": ("", "/nothing", "/dev/null"),
    "XDG_CACHE_HOME": ("/dev/null", "/proc"),
    "TZ": ("nothing", ":/dev/null"),
    "PYTHONPATH": ("", "\n"),
}

# A command that works, or would start ranks, and what it reads: every trial changes one of these. DIRECTORY is the
# trial's own; RUN and the others are files in it.
BASES: Mapping[str, tuple[str, ...]] = {
    "runs": ("",),
    "show": ("RUN", "RUN --mini", "bloom-176b", "h100-sxm", "bloom-176b --mini --json"),
    "import": ("CONFIG", "CONFIG --output DIRECTORY/out.toml --gpus 8 --on h100-sxm", "CONFIG --recipe bloom-176b"),
    "predict": (
        *("RUN", "bloom-176b", "gpt2-124m --on h100-sxm --gpus 8 --all", "RUN --machine PROFILE", "bloom-mini"),
        "gpt2-124m --timeline DIRECTORY/step.json --memory-snapshot DIRECTORY/step.pickle --force",
        "gpt2-124m --chakra DIRECTORY/traces",
    ),
    "fit": ("gpt2-124m --on h100-sxm", "RUN", "llama3.1-8b --gpus 8", "DIRECTORY --gpus 8 --csv DIRECTORY/rows.csv"),
    "plan": ("gpt2-124m --on a100-sxm-40gb --gpus 8", "RUN --gpus 4", "llama2-7b --on h100-sxm --gpus 8 --goodput"),
    "diagnose": ("TABLE", "TABLE --row 2 --json", "--run gpt2-124m --on h100-sxm --gpus 8 --step-time 1 --mfu 40"),
    "explore": ("RUN", "gpt2-124m --port 0", "gpt2-124m --static DIRECTORY/page.html"),
    "validate": ("TABLE", "TABLE --write DIRECTORY/out.csv --as-read DIRECTORY/read.csv", "TABLE --all --json"),
    "refit": ("",),
    "formulas": ("", "adam_states"),
    "reproduce": (
        "bloom-mini --steps 8 --corpus TEXT --results RESULTS",
        "RUN --mini --corpus TEXT --results RESULTS",
        "bloom-176b-slice --layers 1 --sequence 256 --results RESULTS",
        "bloom-mini --corpus TEXT --resume RESULTS/checkpoints --results RESULTS",
    ),
    "dry-run": ("bloom-mini --layout dp2 --results RESULTS", "RUN --mini --results RESULTS", "DIRECTORY"),
    "calibrate": ("--results RESULTS",),
    "results list": ("--results RESULTS",),
    "results show": ("ID --results RESULTS",),
    "results diff": ("ID ID --results RESULTS",),
    "results check": ("--results RESULTS",),
    "results export": (
        *("--out DIRECTORY/out.csv --results RESULTS", "--out DIRECTORY/out.parquet --results RESULTS"),
        *(f"--format {name} --out DIRECTORY/out --results RESULTS" for name in ("asv", "bencher", "pytorch-benchmark")),
    ),
    "results merge": ("OTHER --results RESULTS",),
    "results prune": ("--older-than 1 --results RESULTS", "--damaged --results RESULTS"),
    "regress": ("bloom-mini --results RESULTS", "bloom-mini --accept --results RESULTS"),
    "accept": ("--profile quick --results RESULTS", "--checks --results RESULTS"),
    "fleet accept": ("--engine slurm --nodes n1 --results RESULTS", "--results RESULTS"),
    "fleet show": ("--results RESULTS",),
    "fleet references": ("--results RESULTS",),
    "fleet node-patch": ("accept NODE --code 1", "ID NODE"),
    "fleet report": (
        "RESULTS --store DIRECTORY/store",
        "RESULTS --prometheus DIRECTORY/out.prom --store DIRECTORY/store",
    ),
    "ladder": ("gpt2-mini --results RESULTS --corpus TEXT",),
    "report": ("--results RESULTS --out DIRECTORY/out.md",),
    "first-hour": ("--results RESULTS", "--list --results RESULTS"),
    "schema": ("predict", ""),
}
FILES: Mapping[str, str] = {  # which kind of file a word of the bases stands for
    "RUN": "run file",
    "CONFIG": "configuration",
    "PROFILE": "machine profile",
    "TABLE": "published table",
    "NODE": "node of Kubernetes",
}
STORED = ("record's first half", "record's second half", "battery's first half", "battery's second half", "fleet")
STORED += ("baseline", "ladder", "dry run", "kernel benchmark")
LARGEST_WHOLE = "9223372036854775807"
BEYOND_ALL = {"int": (LARGEST_WHOLE,), "float": ("1e308", "nan")}
BEYOND: Mapping[tuple[str, str], tuple[str, ...]] = {  # numbers within texts
    ("reproduce", "--slow-rank"): (f"{LARGEST_WHOLE}:2:1", "0:1e308:1", f"0:2:{LARGEST_WHOLE}"),
    ("reproduce", "--synchronisation"): (f"ssp:{LARGEST_WHOLE}",),
    ("reproduce", "--stage"): (LARGEST_WHOLE,),
    ("reproduce", "--layout"): (f"dp{LARGEST_WHOLE}", f"dp2,bucket{LARGEST_WHOLE}", "dp2,bucket1e308"),
    ("dry-run", "--ranks"): (LARGEST_WHOLE,),
    ("dry-run", "--layout"): (f"dp{LARGEST_WHOLE}",),
    ("plan", "--fix"): (f"dp{LARGEST_WHOLE}",),
    ("predict", "--layout"): (f"dp{LARGEST_WHOLE}", f"dp8,micro{LARGEST_WHOLE}"),
    ("results list", "--since"): (f"{LARGEST_WHOLE}d",),
    ("fleet report", "--since"): (f"{LARGEST_WHOLE}w",),
}
NEVER = {"refit": ("--write", "--keep")}  # they change the checkout


class Trial(NamedTuple):
    """One command line, with what surrounds it; `stream`: of standard output."""

    command: str
    arguments: list[str]
    variables: dict[str, str]
    stream: str


@cache
def options(command: str) -> tuple[Any, ...]:
    """The parameters of a command, as click knows them."""
    name, *sub = command.split()
    group = typer.main.get_command(application([name, *sub]))
    own = cast(Any, group).commands[name] if hasattr(group, "commands") else group
    return tuple((own.commands[sub[0]] if sub and hasattr(own, "commands") else own).params)


def loaded() -> None:
    """Import the module of every command, for forks to have."""
    for name, (module, function) in COMMANDS.items():
        command = getattr(importlib.import_module(module), function)
        for sub in (each.partition(" ")[2] for each in BASES if each.startswith(f"{name} ")):
            command(sub)
    assert {name for name in COMMANDS if name not in GROUPS} <= set(BASES)
    for command in BASES:
        options(command)


def hostile_line(command: str, place: Path, chance: random.Random) -> Trial:
    """A command line of one to three mistakes, whose files lie below `place`."""
    results, kinds = _results(place / "results", chance), chance.random() < 0.5
    given = _base_line(chance.choice(BASES[command]), place, results, chance, damage=kinds)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
        given = _CHANGES[chance.randrange(len(_CHANGES))](command, given, place, chance)
    variables = {}
    if chance.random() < 0.2:
        name = chance.choice([*VARIABLES])
        variables[name] = chance.choice(VARIABLES[name])
    return Trial(command, [*command.split(), *given], variables, chance.choice(STREAMS))


def _base_line(base: str, place: Path, results: Path, chance: random.Random, *, damage: bool) -> list[str]:
    """The words of a base with the files that they name, real ones unless there is to be `damage`."""
    words: dict[str, str] = {"DIRECTORY": str(place), "RESULTS": str(results), "OTHER": str(results)}
    words |= {"ID": _record_id(), "TEXT": str(_text(place))}
    asked = base.split(" ")
    for word, kind in FILES.items():
        if word in asked:
            words[word] = _file(PARSERS[kind], place / "files", chance, damage=damage)
    return [_filled(word, words) for word in asked if word]


def lines_beyond_every_range(place: Path) -> Iterator[Trial]:
    """A line of every command for each of its numbers, which are larger than any can be, or none at all."""
    for command, bases in BASES.items():
        for option in options(command):
            kind = option.type.name.partition(" ")[0]
            for value in BEYOND.get((command, option.opts[0]), BEYOND_ALL.get(kind, ())):
                base = _base_line(bases[0], place, place / "results", random.Random(0), damage=False)
                yield Trial(command, [*command.split(), *base, option.opts[0], value], {}, "file")


def _filled(word: str, words: Mapping[str, str]) -> str:
    head, slash, tail = word.partition("/")
    return f"{words[head]}{slash}{tail}" if head in words else word


def _value(kind: str, place: Path, chance: random.Random) -> str:
    """A hostile value for an option of this type, or now and then of another one."""
    if chance.random() < 0.1:
        kind = chance.choice(("int", "str", "path"))
    if kind.startswith(("int", "float")):
        return chance.choice(NUMBERS)
    if kind == "path" and chance.random() < 0.6:
        return str(place / chance.choice(NAMES))
    return chance.choice(WORDS)


def _with_option(command: str, given: list[str], place: Path, chance: random.Random) -> list[str]:
    own = [
        each for each in options(command) if each.opts[0].startswith("-") and each.opts[0] not in NEVER.get(command, ())
    ]
    if not own:
        return [*given, chance.choice(WORDS)]
    option = chance.choice(own)
    name = chance.choice([*option.opts, *option.secondary_opts])
    return [*given, name] if option.is_flag else [*given, name, _value(option.type.name, place, chance)]


def _with_other_word(_: str, given: list[str], place: Path, chance: random.Random) -> list[str]:
    """One word replaced."""
    if not given:
        return [chance.choice(WORDS)]
    at = chance.randrange(len(given))
    is_number = given[at].replace(".", "").isdigit()
    value = chance.choice(NUMBERS) if is_number else chance.choice((*WORDS, str(place / chance.choice(NAMES))))
    return [*given[:at], value, *given[at + 1 :]]


def _with_hostile_file(_: str, given: list[str], place: Path, chance: random.Random) -> list[str]:
    """A file replaced by something hostile of the same name."""
    files = [Path(word) for word in given if word.startswith(str(place)) and Path(word).is_file()]
    if files:
        path, make = chance.choice(files), chance.choice([*HOSTILE.values()])
        real = path.read_bytes()
        path.unlink()
        make(path, real)
    return given


def _without_word(_: str, given: list[str], _place: Path, chance: random.Random) -> list[str]:
    return given if not given else [word for number, word in enumerate(given) if number != chance.randrange(len(given))]


_Change = Callable[[str, list[str], Path, random.Random], list[str]]
_CHANGES: tuple[_Change, ...] = (*(_with_option,) * 5, *(_with_other_word,) * 2, _with_hostile_file, _without_word)


def _file(parser: Parser, place: Path, chance: random.Random, *, damage: bool) -> str:
    """A real or damaged file under a usual or hostile name."""
    place.mkdir(parents=True, exist_ok=True)
    data = chance.choice(parser.samples())
    data = parser.sealed(damaged(data, chance)) if damage else data
    name = chance.choice(NAMES) if chance.random() < 0.5 else "x"
    path = place / f"{name}{Path(parser.name).suffix}"
    path.parent.mkdir(exist_ok=True)  # "[/]" has a directory
    path.write_bytes(data)
    return str(path)


def _text(place: Path) -> Path:
    path = place / "text"
    path.write_text(TEXT, encoding="utf-8")
    return path


def _record_id() -> str:
    return Path(PARSERS["record's first half"].name).name.partition(".")[0]


def _results(place: Path, chance: random.Random) -> Path:
    """A results directory with something of everything, of which one file may be damaged, and a hostile name."""
    broken = chance.choice(STORED) if chance.random() < 0.6 else None
    for kind in STORED:
        parser = PARSERS[kind]
        for name, data in {**parser.beside(), parser.name: parser.samples()[0]}.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                continue
            path.write_bytes(parser.sealed(damaged(data, chance)) if kind == broken and name == parser.name else data)
    if chance.random() < 0.3:
        directory = place / chance.choice(("records", "acceptance", "machines", "kernels", "fleet", "."))
        odd = directory / f"{chance.choice(NAMES[:-1])}{chance.choice(('', '.begin.json', '.json', '.end.json'))}"
        odd.parent.mkdir(parents=True, exist_ok=True)
        if not odd.exists() and len(os.fsencode(odd.name)) < 256:
            chance.choice((lambda: odd.write_bytes(b"{}"), odd.mkdir, lambda: os.mkfifo(odd)))()
    return place
