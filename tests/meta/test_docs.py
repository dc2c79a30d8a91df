"""The program does what the pages in docs/ quote."""

from __future__ import annotations

import enum
import re
import types
import typing
from pathlib import Path

import msgspec
import pytest

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import load
from reference_runs.defaults import DEFAULTS
from reference_runs.errors import InputError
from reference_runs.hugging_face.families import FAMILIES
from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.machine_model import fit_scores, machine_model
from reference_runs.published_tables import load_tables
from reference_runs.run import (
    Activation,
    Architecture,
    Cluster,
    Norm,
    Position,
    PublishedMeasurement,
    QueryKeyNorm,
    Recipe,
    ReferenceRun,
    Reported,
    Software,
    Workload,
)
from reference_runs.sourced import Kind
from suite.__main__ import main
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.predict.analytic.parameters import parameter_count
from suite.report.machine_model import fit_page
from suite.report.markdown.floors import floor_table
from suite.reproduce.supported import check_executable, check_executable_layout

DOCS = ROOT / "docs"
EXAMPLE = (DOCS / "example_run.toml").read_text(encoding="utf-8")
PAGE = (DOCS / "writing_a_run.md").read_text(encoding="utf-8")
MISTAKES = re.findall(r"^- (.+)\n\+ (.+)\n(error: .+)$", PAGE, re.MULTILINE)
TABLES: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "| `[architecture]` |": (Architecture,),
    "| `[recipe]` |": (Recipe,),
    "| `[layout]` |": (Layout,),
    "| `[cluster]`, `[software]` |": (Cluster, Software),
    "| `[reported]` |": (Reported,),
}


def test_the_example_run_loads_and_shows_a_conflict_an_assumption_and_a_gap() -> None:
    run = load(DOCS / "example_run.toml")
    assert run.reported.parameters == parameter_count(run.architecture)
    assert run.cluster is not None
    assert run.layout.ranks == run.cluster.accelerators
    kinds = {key: fact.kind for key, fact in run.facts.items()}
    assert kinds["recipe.init_std"] is Kind.ASSUMED
    assert kinds["cluster.network_interface_bandwidth"] is Kind.NOT_PUBLISHED
    assert [reading.value for reading in run.facts["reported.step_seconds"].readings] == [47]
    # every source is used
    assert {fact.source.split()[0].rstrip(",") for fact in run.facts.values()} | {"dashboard"} == set(run.sources)


def test_a_quoted_error_line_is_what_the_program_prints_for_its_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(MISTAKES) == PAGE.count("error: ") >= 5
    monkeypatch.chdir(tmp_path)
    for right, wrong, error in MISTAKES:
        assert right in EXAMPLE
        Path("my_run.toml").write_text(EXAMPLE.replace(right, wrong, 1), encoding="utf-8")
        assert main(["show", "my_run.toml"]) == 2, wrong
        assert capsys.readouterr().err == f"{error}\n"


FENCES = re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)


def with_lines(text: str, lines: str) -> str:
    """A run file with these lines of its architecture in place of those of the same keys."""
    keys = re.findall(r"^(\w+) = ", lines, re.MULTILINE)
    kept = re.sub(rf"^({'|'.join(keys)}) = .*\n", "", text, flags=re.MULTILINE)
    return kept.replace("[architecture]\n", f"[architecture]\n{lines}", 1)


def like(model: int, tmp_path: Path) -> ReferenceRun:
    """The example as the page's Llama (0), Mixtral (1) or DeepSeek (2)."""
    path, text = tmp_path / "my_run.toml", EXAMPLE
    for lines in FENCES[: model + 1] if model < 2 else (FENCES[0], FENCES[2]):
        text = with_lines(text, lines)
    path.write_text(re.sub(r"^(parameters|step_seconds) = .*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    return load(path)


def test_the_page_s_models_are_a_llama_a_mixtral_and_a_deepseek(tmp_path: Path) -> None:
    h, rows, layers = 256, 4096, 4
    tables, norms = 2 * rows * h, (2 * layers + 1) * h
    attention, swiglu = 2 * h * h + 2 * h * 128, 3 * h * 704
    assert parameter_count(like(0, tmp_path).architecture) == tables + norms + layers * (attention + swiglu)
    routed = 8 * swiglu + 8 * h
    assert parameter_count(like(1, tmp_path).architecture) == tables + norms + layers * (attention + routed)
    latent = h * 96 + 96 + 96 * 4 * 48 + h * (64 + 16) + 64 + 64 * 4 * (32 + 32) + 4 * 32 * h
    routed = 17 * 3 * h * 176 + 16 * h + 16
    assert parameter_count(like(2, tmp_path).architecture) == tables + norms + layers * latent + swiglu + 3 * routed


def test_the_page_s_models_are_executed_and_predicted(tmp_path: Path) -> None:
    for model in range(3):
        run = like(model, tmp_path)
        assert not refused(run.architecture, run.recipe, run.layout)
        assert main(["predict", str(tmp_path / "my_run.toml")]) == 0


def rows(head: str) -> dict[str, tuple[str, bool]]:
    """Key -> (value and unit, needed), from the page's table under `head`."""
    lines = PAGE.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    found: dict[str, tuple[str, bool]] = {}
    for line in lines:
        keys, value, needed = (cell.strip() for cell in line.strip("|").split("|"))
        names = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", keys))
        assert not found.keys() & set(names)
        is_needed = needed == "yes" or needed.startswith(("for ", "to execute"))
        found |= dict.fromkeys(names, (value.replace("*", ""), is_needed))
    return found


def predicted_only(head: str) -> dict[str, set[str]]:
    """Key -> its values with a star, from the page's table under `head`."""
    lines = PAGE.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return {re.findall(r"`(\w+)`", line)[0]: set(re.findall(r"([\w-]+)\*", line)) for line in lines if "*" in line}


def schema(*kinds: type[msgspec.Struct]) -> dict[str, tuple[str, bool]]:
    """The same from the records' types."""
    found: dict[str, tuple[str, bool]] = {}
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            bare, unit = field.type, "1"
            if typing.get_origin(bare) in (types.UnionType, typing.Union):
                bare = next(option for option in typing.get_args(bare) if option is not type(None))
            if typing.get_origin(bare) is typing.Annotated:
                bare, meta = typing.get_args(bare)[:2]
                unit = (meta.extra or {}).get("unit", "1")
            if typing.get_origin(bare) is tuple:
                [element, *_] = typing.get_args(bare)
                is_enum = isinstance(element, type) and issubclass(element, enum.Enum)
                text = "list of " + (", ".join(element) if is_enum else "integers")
            elif issubclass(bare, enum.Enum):
                text = "one of " + ", ".join(bare)
            else:
                text = {bool: "true or false", int: f'integer, "{unit}"', float: f'number, "{unit}"', str: "text"}[bare]
            has_default = any(field.name in keys for keys in DEFAULTS.values()) and kind in (Architecture, Recipe)
            found[field.name] = (text, field.required and not has_default)
    return found


def test_the_page_lists_every_key_with_its_type_unit_and_whether_it_is_needed() -> None:
    for head, kinds in TABLES.items():
        assert rows(head) == schema(*kinds), head


def test_the_page_gives_the_layouts_defaults() -> None:
    table = PAGE.partition("| `[layout]` |")[2].partition("\n\n")[0]
    given = {
        name: line.rpartition("| no: ")[2].removesuffix(" |")
        for line in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)`", line)
    }
    default = {name: str(value) for name, value in msgspec.structs.asdict(Layout()).items()}
    default |= {name: text.lower() for name, text in default.items() if text in ("True", "False")}
    # None and a number of bytes are written for people
    assert (default.pop("accumulation"), default.pop("bucket_bytes")) == ("None", str(25 * 2**20))
    assert (default.pop("stage_layer_counts"), given.pop("stage_layer_counts")) == ("None", "as stage_assignment says")
    assert (default.pop("stage_replicas"), given.pop("stage_replicas")) == ("None", "data_parallel")
    assert (default.pop("shard_ranks"), given.pop("shard_ranks")) == ("None", "all")
    assert (given.pop("accumulation"), given.pop("bucket_bytes")) == ("what the global batch gives", "25 MiB")
    assert given == default


def needed(head: str) -> dict[str, str]:
    """Key -> when the page says that it is needed."""
    lines = PAGE.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return {
        key: line.strip("|").split("|")[2].strip()
        for line in lines
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    }


def test_the_page_gives_the_defaults_of_keys_that_may_be_left_out() -> None:
    words = {section: needed(f"| `[{section}]` |") for section in DEFAULTS}
    shape = {"heads": 3, "head_dim": 2, "hidden": 6, "vocabulary": 5, "position": Position.ROTARY}
    follows = {
        "hidden / heads": "`hidden` / `heads`",
        "equal to heads": "`heads`",
        "equal to vocabulary": "`vocabulary`",
    }
    for section, defaults in DEFAULTS.items():
        for key, default in defaults.items():
            value = default.value(shape)
            said = words[section][key].rpartition("only then, ")[2].removeprefix("no: ").strip()
            if default.words in follows or key == "rotary_dim":
                assert said == follows.get(default.words, "`head_dim`"), key
            elif isinstance(value, float):
                assert float(said) == value, key
            else:
                assert said == str(value).lower(), key


def test_the_page_says_which_keys_of_a_recipe_figures_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, words = tmp_path / "my_run.toml", needed("| `[recipe]` |")
    for key in [field.name for field in msgspec.structs.fields(Recipe) if field.required]:
        path.write_text(re.sub(rf"^{key} = .*\n", "", EXAMPLE, flags=re.MULTILINE), encoding="utf-8")
        assert main(["predict", str(path), "--all"]) == 0
        lacking = f"recipe.{key} is needed, and the file leaves it out" in " ".join(capsys.readouterr().out.split())
        assert lacking == words[key].startswith("for "), key
        if key not in DEFAULTS["recipe"]:
            assert main(["reproduce", str(path), "--device", "cpu", "--results", str(tmp_path / "results")]) == 2
            assert f"recipe.{key} is needed to execute, and the file leaves it out" in capsys.readouterr().err


def test_the_page_lists_every_key_of_a_measurement() -> None:
    needed, optional = re.search(r"It needs (.+?),? and may have (.+?)\n\n", PAGE, re.DOTALL).groups()  # type: ignore[union-attr]  # a missing sentence fails the test
    found = dict.fromkeys(re.findall(r"`(\w+)`", needed), True) | dict.fromkeys(re.findall(r"`(\w+)`", optional), False)
    assert found == {name: required for name, (_, required) in schema(PublishedMeasurement).items()}


def refused(architecture: Architecture, recipe: Recipe, layout: Layout) -> bool:
    """Whether `reproduce` executes none of the kind."""
    try:
        check_executable(architecture, recipe, "")
        check_executable_layout(Workload(architecture, recipe, layout), "")
    except InputError:
        return True
    return False


def test_values_with_a_star_are_those_that_are_not_executed() -> None:
    run = load(DOCS / "example_run.toml")
    for head, choices in {
        "| `[architecture]` |": {"norm": Norm, "activation": Activation, "query_key_norm": QueryKeyNorm},
        "| `[layout]` |": {"schedule": Schedule, "recomputation": Recomputation, "offload": Offload},
    }.items():
        stars = predicted_only(head)
        assert stars.keys() <= choices.keys()
        for key, kind in choices.items():
            for value in kind:
                zero = 2 if key == "offload" else 1  # what is offloaded is fully sharded
                layout = msgspec.structs.replace(run.layout, zero_stage=zero)
                architecture = run.architecture
                if "layout" in head:
                    layout = msgspec.structs.replace(layout, **{key: value})
                else:
                    architecture = msgspec.structs.replace(architecture, **{key: value})
                assert refused(architecture, run.recipe, layout) == (value in stars.get(key, ())), (key, value)


def test_the_page_names_every_family_that_is_imported() -> None:
    listed = re.search(r"Families: ([\w,\s]+) \(`model_type`\)", PAGE)
    assert listed is not None
    assert re.split(r",\s+", listed.group(1)) == sorted(FAMILIES)


def test_the_page_explains_every_kind() -> None:
    assert [kind for kind in Kind if f"| `{kind.value}` | " not in PAGE] == []


def test_the_machine_models_numbers_are_those_of_the_fit() -> None:
    page = (DOCS / "machine_model_numbers.md").read_text(encoding="utf-8")
    assert page == fit_page(machine_model(), fit_scores(), load_tables())


def test_the_glossary_defines_every_quantity_and_no_term_twice() -> None:
    lines = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    terms = [term.strip(" `").lower() for cell in cells for term in cell.split(",")]
    heads = {"term", "quantity"}
    assert sorted({term for term in terms if terms.count(term) > 1} - heads) == []
    assert sorted(set(Quantity) - set(terms)) == []


def test_the_table_of_floors_is_that_of_the_accelerators() -> None:
    table = floor_table(map(accelerator, accelerator_names()))
    assert table in (DOCS / "acceptance_rules.md").read_text(encoding="utf-8"), f"put this into the page:\n{table}"
