"""Runs are recorded as published, each value with its kind and source, and broken files are refused by their keys."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import ACCELERATORS
from reference_runs.catalog import RUNS, load, reference_run, run_names
from reference_runs.errors import InputError
from suite.execute.model.position import alibi_slopes
from tests.support.recorded_entries import unexplained, unused_sources

CLAIMS = tomllib.loads(Path(__file__).with_name("published_claims.toml").read_text(encoding="utf-8"))
SECTIONS = ("architecture", "recipe", "layout", "cluster", "reported")
FILES = sorted(RUNS.glob("*.toml"))


def test_every_file_is_a_run_of_its_name() -> None:
    assert len(FILES) == len(run_names()) >= len(CLAIMS)
    assert [reference_run(name).name for name in run_names()] == run_names()


def test_every_recorded_value_has_kind_source_unit_and_reason() -> None:
    """And every source is used."""
    paths = [*FILES, *ACCELERATORS.glob("*.toml")]
    assert [wrong for path in paths for wrong in unexplained(path)] == []
    assert {path.name: unused for path in paths if (unused := unused_sources(path))} == {}


def test_every_claim_of_a_document_is_the_recorded_value() -> None:
    wrong = []
    for name, sections in CLAIMS.items():
        run = reference_run(name)
        for section in SECTIONS:
            for field, claimed in sections.get(section, {}).items():
                found = getattr(getattr(run, section), field)
                if found != (None if claimed == "not published" else claimed) or f"{section}.{field}" not in run.facts:
                    wrong.append((name, section, field, claimed, found))
    assert wrong == []


def test_what_other_sources_say_stands_beside_the_chosen_value() -> None:
    wrong = []
    for name, sections in CLAIMS.items():
        for key, claimed in sections.get("readings", {}).items():
            fact = reference_run(name).facts[key]
            found = {reading.value for reading in fact.readings}
            if found != set(claimed) or not fact.why:
                wrong.append((name, key, claimed, found, fact.why))
    assert wrong == []


TOML = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")


def test_a_micro_batch_that_divides_no_batch_is_refused_without_a_useless_hint(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    lines = [line for line in TOML.splitlines() if not line.startswith(("accumulation", "micro_batch = { value = 2,"))]
    text = "\n".join(lines).replace(
        "[layout]", '[layout]\nmicro_batch = { value = 3, unit = "sample", kind = "stated", source = "slurm" }'
    )
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="allowed: a micro-batch that divides it"):
        load(path)


def slopes_of_the_authors(heads: int) -> list[float]:
    """get_slopes of Press et al., the authors' code, written from its recursion."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes_of_the_authors(closest) + slopes_of_the_authors(2 * closest)[0::2][: heads - closest]


@given(st.integers(1, 300))
def test_alibi_slopes_equal_the_authors_recursion(heads: int) -> None:
    # powers of a rounded start: at most 512 roundings of 1.1e-16 each
    assert alibi_slopes(heads) == pytest.approx(slopes_of_the_authors(heads), rel=512 * 2**-53)


def test_alibi_slopes_of_eight_heads_are_the_papers_and_blooms_those_of_64_and_48_of_128() -> None:
    assert alibi_slopes(8) == [1 / 2**i for i in range(1, 9)]
    slopes = alibi_slopes(112)
    assert slopes[:64] == [2 ** (-i / 8) for i in range(1, 65)]
    assert slopes[64:] == [2 ** (-i / 16) for i in range(1, 97, 2)]
