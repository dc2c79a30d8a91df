"""Whatever is in a file, it is read, or refused in one line: a few damaged files of each kind (more: `nox -s fuzz`)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import RUNS, load, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import layout_text, named_fields, parse_layout
from suite.job.synchronisation import parse_slow_ranks, parse_synchronisation
from tests.end_to_end.fuzz.bounded import in_fork, placed, read, timed
from tests.end_to_end.fuzz.damage import HOSTILE, damaged
from tests.end_to_end.fuzz.parsers import PARSERS, Parser

CASES = 6
QUICK = ("empty", "nul", "utf-16", "deep lists", "deep objects", "named pipe", "link to itself", "device without end")
DEFAULT = [name for name in PARSERS if name != "checkpoint's metadata"]  # which needs PyTorch
BASE = reference_run("bloom-176b").layout
WORDS = ["dp", "tp", "pp", "zero", "shard", "micro", "every", "bucket", "order-", "recompute-", "sp", "1f1b", "-", ","]
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.integers(-1, 10**12).map(str), st.text(max_size=4)), max_size=8)


def put(parser: Parser, place: Path, data: bytes) -> None:
    placed(parser, place, lambda path: path.write_bytes(data) and None)


def test_real_files_are_read(tmp_path: Path) -> None:
    for name in DEFAULT:
        for sample in PARSERS[name].samples()[:2]:
            put(PARSERS[name], tmp_path / name, sample)
            assert read(PARSERS[name], tmp_path / name) is None, name


@pytest.mark.parametrize("name", DEFAULT)
def test_damaged_and_hostile_files_are_read_or_refused_in_a_line_in_little_time_and_memory(
    name: str, tmp_path: Path
) -> None:
    parser, chance = PARSERS[name], random.Random(1)
    samples = parser.samples()
    for _ in range(CASES):
        put(parser, tmp_path / "x", parser.sealed(damaged(chance.choice(samples), chance)))
        read(parser, tmp_path / "x")

    def all_read() -> str:
        for what in QUICK:
            placed(parser, tmp_path / "x", lambda path, make=HOSTILE[what]: make(path, samples[0]))
            try:
                timed(lambda: read(parser, tmp_path / "x"))
            except Exception as error:
                error.add_note(what)
                raise
        return ""

    if said := in_fork(all_read):
        pytest.fail(said, pytrace=False)


@given(text=TEXTS.map("".join))
def test_any_text_is_a_layout_or_is_refused_in_a_line(text: str) -> None:
    for parse in (
        lambda: layout_text(parse_layout(text, base=BASE)),
        lambda: named_fields(text, where="layout"),
        lambda: parse_synchronisation(text),
        lambda: parse_slow_ranks(text),
    ):
        refused: InputError | None = None
        try:
            parse()
        except InputError as error:
            refused = error
        assert refused is None or all("\n" not in line for line in refused.lines)


def test_a_layout_of_too_many_digits_or_words_is_refused() -> None:
    for text in ("dp" + "9" * 5000, "dp\u0663", "zero" + "9" * 5000, "dp1," * 10**5, "x" * 10**6):
        with pytest.raises(InputError) as refused:
            parse_layout(text, base=BASE)
        assert len(refused.value.lines[0]) < 6000, text[:9]


def test_a_model_of_a_trillion_layers_is_refused_before_they_are_counted(tmp_path: Path) -> None:
    recorded = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
    path = tmp_path / "deep.toml"
    path.write_text(recorded.replace("layers = { value = 70,", "layers = { value = 1000000000000,"), encoding="utf-8")
    with pytest.raises(InputError, match="architecture.layers: Expected `int` <= 10000; got 1000000000000"):
        load(path)
