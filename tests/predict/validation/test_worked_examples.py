"""Textbook arithmetic: each recorded example is computed by functions of suite.predict; slips are the known ones."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
import tomllib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import FrameType

import msgspec
import pytest
from rich.console import Console

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.units import UNITS
from reference_runs.worked_examples import WORKED_EXAMPLES, Agreement, ExampleResult, WorkedExample, load
from suite.__main__ import main
from suite.commands.formulas import WORDS
from suite.paths import ROOT
from suite.predict.analytic.flop_conventions import six_n_flop
from suite.predict.analytic.limits import fp16_spacing
from suite.predict.validation import computations, lessons
from suite.predict.validation import worked_examples as examples
from suite.predict.validation.computations import COMPUTATIONS
from suite.predict.validation.worked_examples import ExampleVerdict, FormulaResult, computed_values, formula_results

EXAMPLES = load()
IDS = [example.id for example in EXAMPLES]
RESULTS = [result for example in EXAMPLES for result in formula_results(example)]

DOCUMENTED_SLIPS = {
    "max_tensor_parallel_h100": {"required flop per byte"},
    "gpt3_one_v100_years": {"years"},
    "pipeline_13b_pp4_by_stage": {"stages that overflow"},
    "nics_for_pcie4": {"available share"},
    "opt_175b_training_tokens": {"trained tokens"},
    "mt_nlg_measured_layout": {f"on {accelerators} accelerators" for accelerators in (2240, 2800, 3360)},
}
SLIPS_FOUND_HERE = {"selective_recomputation_flop": {"flop added", "hardware flop"}}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the command and returns exit code, output and messages."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(["formulas", *arguments])
        return code, *capsys.readouterr()

    return command


def predict_functions(call: Callable[[], object]) -> set[str]:
    """Functions of suite.predict below its validation that run during `call`, as module.function."""
    directory, validation = str(ROOT / "suite" / "predict"), str(ROOT / "suite" / "predict" / "validation")
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        below = code.co_filename.startswith(directory) and not code.co_filename.startswith(validation)
        if event == "call" and below and not code.co_name.startswith("<"):
            seen.add(f"{Path(code.co_filename).stem}.{code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


@pytest.fixture(scope="module")
def functions_of_predict() -> set[str]:
    """Functions of suite.predict in `predict`, `plan`, `fit --serve`: every axis, fp16, experts, prices, failures."""

    def predict() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["predict", "bloom-176b", "gpt3-175b", "opt-175b", "--choices", "--json"]) == 0
            assert (
                main(["predict", "gpt3-175b", "--layout", "dp2,tp8,pp8,interleave2,recompute-selective"]) == 1
            )  # memory
            layout = ["--layout", "dp4,ep4,tp2,cp2,sp", "--network", "3200"]
            assert main(["predict", "mixtral-8x7b", "--on", "h100-sxm", *layout]) == 1  # memory
            assert main(["predict", "gpt2-124m", "--price", "2", "--energy-price", "0.1"]) == 0
            assert main(["plan", "gpt2-124m", "--gpus", "8", "--top", "1", "--goodput"]) == 0
            assert main(["fit", "gpt2-124m", "--serve"]) == 0

    return predict_functions(predict)


def test_every_example_is_computed_by_functions_that_predict_calls_and_by_one_at_least(
    functions_of_predict: set[str],
) -> None:
    used = {example.id: predict_functions(lambda each=example: computed_values(each)) for example in EXAMPLES}
    wrong = {name: functions - functions_of_predict for name, functions in used.items()}
    assert {name: functions for name, functions in wrong.items() if functions or not used[name]} == {}


def test_the_proof_can_fail() -> None:
    alone = predict_functions(lambda: six_n_flop(parameters=1, tokens=1))
    assert alone == {"flop_conventions.six_n_flop"}
    assert not alone <= predict_functions(lambda: fp16_spacing(-3))


def example_of(name: str) -> WorkedExample:
    return EXAMPLES[IDS.index(name)]


# What is recorded, and what computes it


def test_every_result_is_computed_and_every_computed_value_recorded() -> None:
    assert set(COMPUTATIONS) == set(IDS)
    recorded = {example.id: {result.what for result in example.results} for example in EXAMPLES}
    assert {example.id: set(computed_values(example)) for example in EXAMPLES} == recorded


def arithmetic(tree: ast.AST) -> list[str]:
    """Expressions that calculate: operators but the | of types and dictionaries, and names such as sum and math."""
    found = []
    for node in ast.walk(tree):
        calculates = isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr)
        calculates |= isinstance(node, (ast.AugAssign, ast.UnaryOp)) and not isinstance(
            getattr(node, "op", None), ast.Not
        )
        calculates |= isinstance(node, ast.Name) and node.id in ("sum", "pow", "divmod", "round", "math", "operator")
        if calculates:
            found.append(ast.unparse(node))
    return found


def test_the_computations_hold_no_arithmetic_of_their_own() -> None:
    checks = {"_checked", "_decimal", "_number"}  # compare what was computed with what is recorded
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (computations, lessons, examples)]
    tree = ast.Module([node for source in sources for node in ast.parse(source).body], type_ignores=[])
    assert checks <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if not (isinstance(node, ast.FunctionDef) and node.name in checks):
            assert arithmetic(node) == []


@pytest.mark.parametrize("code", ["lambda *, a: 2 * a", "sum(a)", "-a", "math.sqrt(a)", "a += b"])
def test_the_check_for_arithmetic_can_fail(code: str) -> None:
    assert arithmetic(ast.parse(code))


# Figures


def half_of_last_digit(digits: str) -> Fraction:
    """Half a unit in the last place of a decimal text such as 4.30e23, counted on its characters."""
    mantissa, _, exponent = digits.partition("e")
    return Fraction(10) ** (int(exponent or 0) - len(mantissa.partition(".")[2])) / 2


def test_every_computed_figure_is_the_recorded_one_to_its_printed_digits() -> None:
    wrong = []
    for table in tomllib.loads(WORKED_EXAMPLES.read_text(encoding="utf-8"))["example"]:
        computed = computed_values(example_of(table["id"]))
        for result in table["results"]:
            value, exact = computed[result["what"]], result["exact"]
            if "unit" not in result:
                wrong += [] if value == exact else [(table["id"], result["what"], value, exact)]
                continue
            factor = Fraction(UNITS[result["unit"]][1]) if result["unit"] in UNITS else 1
            # an exact figure may be a tie (0.5 of a last digit): rounding errors of a few float operations are allowed
            allowed = half_of_last_digit(exact) * (1 + Fraction(1, 10**9))
            if abs(Fraction(value) / factor - Fraction(exact)) > allowed:
                wrong.append((table["id"], result["what"], value, exact))
    assert wrong == []


def test_the_slips_are_the_six_documented_ones_and_those_found_here() -> None:
    slips: dict[bool, dict[str, set[str]]] = {False: {}, True: {}}
    for result in RESULTS:
        assert result.verdict is not ExampleVerdict.BROKEN, result
        if result.verdict is ExampleVerdict.SLIPS:
            slips[result.found_here].setdefault(result.id, set()).add(result.what)
    assert slips == {False: DOCUMENTED_SLIPS, True: SLIPS_FOUND_HERE}


def test_every_slip_says_why_and_every_difference_is_computed_less_claimed() -> None:
    for result in RESULTS:
        if result.verdict is ExampleVerdict.SLIPS:
            assert result.why == example_of(result.id).why
        if result.difference is None:
            assert result.claimed is None or result.unit is None
        else:
            # 12 digits of the computed figure are kept
            assert abs(result.difference - (result.computed - result.claimed)) <= 1e-11 * abs(result.computed)


@pytest.mark.parametrize(
    ("claimed", "rounded_to", "unit", "half_step"),
    [
        ("730", None, "GB", "0.5e9"),
        ("730e9", None, "byte", "0.5e9"),
        ("1.7", None, "TB/s", "0.05e12"),
        ("16384", None, "1", "0.5"),
        ("1.00", None, "1", "0.005"),
        ("1.220703125e-4", None, "1", "0.5e-13"),
        ("200", None, "Gbit/s", "0.0625e9"),
        ("196", "2", "Tflop", "1e12"),
        ("355", None, "year", "0.5"),
    ],
)
def test_a_claim_holds_within_half_of_its_last_printed_digit(
    claimed: str, rounded_to: str | None, unit: str, half_step: str
) -> None:
    result = ExampleResult(
        what="it", claimed=claimed, rounded_to=rounded_to, exact="1", unit=unit, verdict=Agreement.AGREES
    )
    assert result.claimed_half_step == Decimal(half_step)


def test_a_tie_agrees_and_a_little_more_does_not() -> None:
    example = example_of("full_recompute_without_checkpoints")  # claims 40 for 40.5
    (ratio,) = [result for result in formula_results(example) if result.what == "times one forward pass"]
    assert (ratio.difference, ratio.verdict) == (0.5, ExampleVerdict.AGREES)
    example = msgspec.structs.replace(example, inputs={"layers": 81})  # 41
    (ratio,) = [result for result in formula_results(example) if result.what == "times one forward pass"]
    assert ratio.verdict is ExampleVerdict.BROKEN


def test_a_tie_is_one_in_spite_of_rounding_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPUTATIONS, "fp16_spacing", lambda: 0.1 + 0.2 + 0.05)  # 0.35000000000000003
    tie = ExampleResult(what="it", claimed="0.3", exact="0.35", unit="1", verdict=Agreement.AGREES)
    example = msgspec.structs.replace(example_of("fp16_spacing"), inputs={}, results=(tie,))
    assert formula_results(example)[0].verdict is ExampleVerdict.AGREES


def test_a_coarser_rounding_is_recorded_only_where_the_digits_do_not_allow_the_claim() -> None:
    checked = {(result.id, result.what): result for result in RESULTS}
    coarse = [(example, result) for example in EXAMPLES for result in example.results if result.rounded_to]
    assert len(coarse) == 5
    for example, result in coarse:
        difference = checked[example.id, result.what].difference
        assert abs(difference) > half_of_last_digit(result.claimed) * Fraction(result.unit_factor)
        assert checked[example.id, result.what].why == example.note != ""


def test_the_trained_tokens_take_the_published_flop_by_equation_3() -> None:
    published = reference_run("opt-175b").reported.total_flop
    computed = computed_values(example_of("opt_175b_training_tokens"))
    assert f"{computed['flop of the trained tokens']:.2e}" == f"{published:.2e}" == "4.30e+23"


def test_the_measured_replicas_are_those_recorded_beside_the_measurements() -> None:
    measured = {f"on {m.accelerators} accelerators": m.data_parallel for m in reference_run("mt-nlg-530b").measured}
    computed = computed_values(example_of("mt_nlg_measured_layout"))
    assert computed == measured | {"on 4480 accelerators": 16}


def test_the_published_hardware_flop_add_three_times_what_is_repeated() -> None:
    added, hardware = formula_results(example_of("selective_recomputation_flop"))
    # 72 s L h^2 (1 + s / 3h + V / 12 L h), multiplied out, for s = 2048, L = 105, h = 20480, V = 51200
    published = 72 * 2048 * 105 * 20480**2 + 24 * 2048**2 * 105 * 20480 + 6 * 2048 * 20480 * 51200
    assert hardware.claimed == pytest.approx(published, abs=0.5e12)
    assert added.claimed == pytest.approx(3 * added.computed, abs=0.005e12)
    assert published - hardware.computed == 2 * added.computed


# The command


def test_all_examples_are_as_recorded_and_slips_stand_with_their_reasons(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    text = " ".join(out.split())
    for example in EXAMPLES:
        assert any(line.startswith(example.id + ": ") for line in lines), example.id
        assert text.count(" ".join(example.why.split())) == 1 or not example.why
    assert "selective_recomputation_flop (found here): Scores" in text
    assert lines[-1] == "examples: 61 agree, 7 with an error of the text, 0 not as recorded; results in all: 170"
    years = next(line for line in lines if line.startswith("gpt3_one_v100_years"))
    assert years.split()[1:7] == ["years", "355", "118.83", "year", "text", "is"]


@pytest.mark.parametrize("columns", [60, 80, 119, 120, 150])
def test_the_table_fits_into_the_terminal_with_no_cell_cut(columns: int, run: Run, monkeypatch) -> None:
    monkeypatch.setattr(
        "suite.commands.formulas.console", lambda: Console(highlight=False, width=columns, file=sys.stdout)
    )
    code, out, _ = run()
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    table = " ".join(out.partition("\n(1) ")[0].split())
    for result in RESULTS:
        name = re.escape(result.id if columns in (119, 120) else f"{result.id}: {result.what}")  # there names fold
        assert re.search(rf"{name}.*? {WORDS[result.verdict]}", table)


def test_a_named_example_is_explained(run: Run) -> None:
    code, out, _ = run("gpt3_one_v100_years")
    assert code == 0
    example = example_of("gpt3_one_v100_years")
    text = " ".join(out.split())
    for part in (example.document, example.formula, "parameters = 1.75e+11, tokens = 1e+11", example.why):
        assert part in text
    assert "llama2" not in out
    assert (
        out.splitlines()[-1] == "examples: 0 agree, 1 with an error of the text, 0 not as recorded; results in all: 1"
    )


def test_a_named_example_has_a_table_of_its_own_without_columns_that_say_nothing(run: Run) -> None:
    _, out, _ = run("gpt2_parameters", "palm_utilization", "gpt3_one_v100_years")
    titles = [line.split() for line in out.splitlines() if line.startswith("result ")]
    plain = ["result", "computed"]
    assert titles == [
        plain,
        ["result", "claimed", "computed", "verdict"],
        [*plain[:1], "claimed", "computed", "verdict", "why"],
    ]
    assert "\nembedding      38,633,472\n" in out


def test_every_result_is_a_json_object_on_a_line(run: Run) -> None:
    code, out, err = run("--json")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["id"], row["what"]) for row in rows] == [
        (example.id, result.what) for example in EXAMPLES for result in example.results
    ]
    assert all(set(row) == set(FormulaResult.__struct_fields__) for row in rows)
    (years,) = [row for row in rows if row["id"] == "gpt3_one_v100_years"]
    assert years["claimed"] == 355
    assert years["unit"] == "year"
    assert years["difference"] == pytest.approx(118.83 - 355, abs=0.005)
    assert (years["verdict"], years["exact"], years["found_here"]) == ("slips", 118.8, False)
    activations = next(row for row in rows if row["id"] == "llama2_70b_activations")
    assert (activations["claimed"], activations["computed"]) == (730e9, 4096 * 8 * 8192 * 80 * 34)
    assert (activations["unit"], activations["recorded_unit"], activations["why"]) == ("byte", "GB", "")


RATIO = "computed 262144000000000.0, recorded 196608000000000; slips, recorded as agrees"
BROKEN: list[tuple[str, Callable[..., object], str]] = [
    ("training_flop_6nd", lambda *, parameters, tokens: 8 * parameters * tokens, RATIO),
    ("gpt3_one_v100_years", lambda **_: 355.0, "computed 355.0, recorded 118.8; agrees, recorded as differs"),
    (
        "activations_40shl_13b",
        lambda **_: 33.6e9,
        "computed 33600000000.0, recorded 3",
    ),  # beside the exact figure alone
    ("zero1_13b_does_not_fit", lambda **_: {"ranks that suffice": "157"}, "no function computes it"),
]


@pytest.mark.parametrize(("name", "computation", "why"), BROKEN)
def test_a_computation_that_breaks_is_reported_and_ends_with_exit_code_1(
    name: str, computation: Callable[..., object], why: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMPUTATIONS, name, computation)
    code, out, _ = run("--json")
    assert code == 1
    broken = [row for row in map(json.loads, out.splitlines()) if row["verdict"] == "broken"]
    assert {row["id"] for row in broken} == {name}
    assert broken[0]["why"].startswith(why)
    code, out, _ = run(name, "fp16_spacing")
    assert code == 1
    assert any("not as recorded" in line and line.endswith("(1)") for line in out.splitlines())
    assert out.splitlines()[-1].startswith("examples: 1 agree, 0 with an error of the text, 1 not as recorded; ")


def test_an_example_without_a_computation_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(COMPUTATIONS, "fp16_spacing")
    code, out, _ = run("fp16_spacing", "--json")
    row = json.loads(out)
    assert (code, row["computed"], row["verdict"], row["why"]) == (1, None, "broken", "no function computes it")


def test_an_unknown_example_is_refused_with_the_ids_that_exist(run: Run) -> None:
    code, out, err = run("training_flop_6nd", "nonsense", "--json")
    assert (code, out) == (2, "")
    assert err == f"error: unknown example; got 'nonsense', allowed: {', '.join(IDS)}\n"


# The file

RECORDED = """
[documents]
book = "A book"

[[example]]
id = "one"
document = "book"
formula = "a + b"
inputs = { a = 1, b = 2.5 }
results = [{ what = "sum", claimed = "4", rounded_to = "2", exact = "3.5", unit = "1", verdict = "agrees" }]
"""

EXAMPLE = RECORDED[RECORDED.index("[[example]]") :]
CLAIM = 'claimed = "4", rounded_to = "2"'
LESS = 'exact = "3.5", unit = "1", verdict = "differs"'
TWICE = 'verdict = "agrees" }, { what = "sum", exact = "yes", verdict = "agrees" }'

BAD = [
    ("[documents]", "[documents", "not valid TOML"),
    ("[documents]", "[papers]", "unknown key 'papers'; allowed: documents, example"),
    ('"A book"', "3", "documents: expected a table of texts"),
    ("[[example]]", "[example]", "example: expected tables [[example]]"),
    ('document = "book"', 'document = "film"', "example.one.document: not a key of [documents]; got"),
    ('formula = "a + b"', 'formula = "a"\nsource = "x"', "example.one: Object contains unknown field"),
    ('formula = "a + b"\n', "", "example.one: Object missing required field `formula`"),
    ('id = "one"\n', "", "example.0: Object missing required field `id`"),
    ('exact = "3.5"', "exact = 3.5", "example.one: Expected `str`, got `float` - at `$.results[0].exact`"),
    ('"agrees"', '"perhaps"', "example.one: Invalid enum value 'perhaps' - at `$.results[0].verdict`"),
    ("results = [{", "results = []\n#", "example.one.results: expected one at least"),
    ('unit = "1"', 'unit = "furlong"', "example.one.results.sum.unit: unknown; got 'furlong', allowed: 1"),
    ('claimed = "4"', 'claimed = "four"', "example.one.results.sum.claimed: expected digits; got 'four'"),
    ('exact = "3.5"', 'exact = "nan"', "example.one.results.sum.exact: expected digits; got 'nan'"),
    ('rounded_to = "2"', 'rounded_to = "1"', "example.one.results.sum.rounded_to: expected more than a unit"),
    ('claimed = "4", ', "", "example.one.results.sum.rounded_to: belongs to a claimed number"),
    ('"agrees"', '"differs"', "example.one.why: needed where a result differs"),
    ('formula = "a + b"', 'formula = "a"\nwhy = "x"', "example.one.why: needed where a result"),
    (f'{CLAIM}, exact = "3.5", unit = "1", verdict = "agrees"', LESS, "example.one.results.sum.claimed: needed"),
    ('verdict = "agrees" }]', f"{TWICE}]", "example.one.results.sum: given twice"),
    (EXAMPLE, EXAMPLE + EXAMPLE, "example.one: id given twice"),
]


def test_a_file_of_the_same_form_loads(tmp_path: Path) -> None:
    path = tmp_path / "examples.toml"
    path.write_text(RECORDED, encoding="utf-8")
    (example,) = load(path)
    assert (example.document, example.inputs, example.verdict) == ("A book", {"a": 1, "b": 2.5}, Agreement.AGREES)


@pytest.mark.parametrize(("old", "new", "line"), BAD)
def test_a_broken_file_is_refused_by_file_and_key(old: str, new: str, line: str, tmp_path: Path) -> None:
    assert old in RECORDED
    path = tmp_path / "examples.toml"
    path.write_text(RECORDED.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as refusal:
        load(path)
    assert str(refusal.value).startswith(f"{path}: {line}")
