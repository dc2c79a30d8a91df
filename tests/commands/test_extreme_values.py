"""Every number of a run file and of the options has a range: commands answer, or refuse it in a line, and end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.quantities import MOST, divisors
from reference_runs.recorded_file import field_types, unit_of
from reference_runs.run import Architecture, Cluster, Recipe, Reported, Software
from suite.__main__ import main
from tests.support.configurations import PUBLISHED
from tests.support.refusals import only_line

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "architecture": Architecture,
    "recipe": Recipe,
    "layout": Layout,
    "cluster": Cluster,
    "software": Software,
    "reported": Reported,
}
VALUES: dict[str, dict[str, Any]] = {
    "architecture": {
        **{"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 512, "vocabulary": 1000, "sequence": 64},
        **{"position": "rotary", "norm": "pre-rms-norm", "activation": "swiglu"},
        **{"biases": False, "tied_embeddings": False},
    },
    "recipe": {
        **{"global_batch": 64, "tokens": 10**9, "precision": "bf16", "optimizer": "adamw"},
        **{"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "gradient_clip": 1.0},
        **{"learning_rate": 1e-3, "minimum_learning_rate": 1e-4, "learning_rate_decay": "cosine"},
        **{"warmup": 640, "decay": 10**7, "init_std": 0.02, "residual_init_scaled": True},
    },
    "layout": {"data_parallel": 8},
    "cluster": {"accelerator": "h100-sxm", "accelerators": 8, "accelerators_per_node": 8},
    "software": {"stack": "pytorch"},
    "reported": {},
}
KEYS = [(section, key) for section, kind in SECTIONS.items() for key in field_types(kind)]
# every type of TOML, and numbers that a float, an integer of 64 bits or a loop cannot take
TYPES = ["[4]", "[]", '["a"]', "[[1]]", "true", '"x"', '""', "{}", "{ a = 1 }", "1979-05-27", "07:32:00"]
NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "0",
    "-1",
    "-0.0",
    "1.5",
    "1e308",
    "1e-320",
    "9223372036854775807",
    "9" * 40,
    "9" * 400,
]
PLACES = ["value", "unit", "kind", "source", "note", "entry"]


def run_file(path: Path, section: str, key: str, raw: str, place: str = "value") -> str:
    """A run file whose key of a section has the TOML text `raw` as its value, or elsewhere in its entry."""
    lines = ['title = "t"', "[sources]", 'card = "c"']
    for name, kind in SECTIONS.items():
        lines.append(f"[{name}]")
        for each, value in (VALUES[name] | ({key: VALUES[name].get(key, 1)} if name == section else {})).items():
            unit = unit_of(kind, each)
            entry = {"value": json.dumps(value), "kind": '"stated"', "source": '"card"'}
            entry |= {} if unit is None else {"unit": json.dumps(unit)}
            if (name, each) == (section, key):
                entry |= {place: raw}
            text = ", ".join(f"{part} = {words}" for part, words in entry.items() if part != "entry")
            lines.append(f"{each} = {entry.get('entry', f'{{ {text} }}')}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extreme") / "run.toml"


@given(at=st.sampled_from(KEYS), raw=st.sampled_from([*TYPES, *NUMBERS]), place=st.sampled_from(PLACES))
@example(at=("architecture", "hidden"), raw="[4]", place="value")
@example(at=("architecture", "hidden"), raw="9223372036854775807", place="value")
@example(at=("architecture", "norm_epsilon"), raw="1e308", place="value")
@example(at=("recipe", "init_std"), raw="1e-320", place="value")
@example(at=("recipe", "batch_rampup_start"), raw="1", place="value")
def test_a_value_of_any_type_is_read_or_refused_in_lines(file: Path, at: tuple[str, str], raw: str, place: str) -> None:
    name = run_file(file, *at, raw, place)
    for command in (["show", name, "--mini", "--json"], ["predict", name, "--json"]):
        assert main(command) in (0, 1, 2)  # 1: it does not fit


LARGEST = [
    *[("architecture", key, str(MOST)) for key in ("hidden", "head_dim", "ffn_hidden", "sequence", "vocabulary")],
    *[("recipe", "global_batch", str(MOST)), ("recipe", "global_batch", "999999937"), ("recipe", "tokens", "1e18")],
    *[("recipe", "init_std", "1e-9"), ("recipe", "init_std", "1000"), ("architecture", "norm_epsilon", "1e-30")],
    *[("layout", "data_parallel", str(MOST)), ("layout", "micro_batch", str(MOST))],
]


@pytest.mark.parametrize(("section", "key", "raw"), LARGEST)
def test_the_largest_values_are_answered(file: Path, section: str, key: str, raw: str) -> None:
    name = run_file(file, section, key, raw)
    asked = ["--gpus", "8", "--on", "h100-sxm", "--network", "400", "--json"]
    for command in (["show", name, "--mini"], ["predict", name], ["plan", name, *asked], ["fit", name, *asked]):
        assert main(command) in (0, 1, 2)


OPTIONS = [
    "fit gpt2-124m --sequence 99999999999999999999",
    "fit gpt2-124m --batch 99999999999999999999",
    "plan gpt2-124m --gpus 9223372036854775807",
    "plan gpt2-124m --batch 1000000001",
    "plan gpt2-124m --tokens 1e308",
    "plan gpt2-124m --network 1e-320",
    "predict gpt2-124m --on h100-sxm --network 1e308",
    "predict gpt2-124m --on h100-sxm --pue 1e308",
    "predict gpt2-124m --on h100-sxm --price nan",
]


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_beyond_its_range_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert "not a usable number; got " in only_line(capsys.readouterr().err)


def test_failures_that_no_training_survives_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2-124m", "--on", "h100-sxm", "--gpus", "8", "--goodput", "--failures", "1000000000"]) == 0
    assert "inf" in capsys.readouterr().out


def test_a_batch_with_a_large_prime_factor_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2-124m", "--batch", "100000007", "--gpus", "8"]) in (0, 1)
    assert capsys.readouterr().out


@given(number=st.integers(1, 5000))
def test_divisors_are_all_divisors(number: int) -> None:
    assert divisors(number) == [size for size in range(1, number + 1) if number % size == 0]


BEYOND = {
    "calibrate --device cpu --ranks 9223372036854775807": "--ranks: too many ranks for this machine",
    "ladder gpt2-mini --device cpu --seed -1": "--seed: seed out of range; got -1, allowed: 0 to 4294967295",
    "reproduce bloom-mini --device cpu --engine slurm --nodes 0": "--nodes: nodes; got 0, allowed: 1 to 100000",
    "reproduce bloom-mini --device cpu --engine slurm --ranks-per-node 0": "got 0, allowed: 1 to 1000",
    "fleet accept --node-minutes inf": "--node-minutes: minutes; got inf, allowed: more than 0, up to 1,000,000",
}


def test_a_number_of_ranks_nodes_or_minutes_beyond_its_range_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for words, expected in BEYOND.items():
        code, said = main(words.split()), capsys.readouterr().err
        if code != 2 or expected not in only_line(said):
            wrong.append((words, code, said))
    assert wrong == []


LONG = "a" * 5000
LONG_NAMES = (
    f"fleet show --results {LONG}",
    f"results prune --damaged --results {LONG}",
    f"regress bloom-mini --results {LONG}",
    f"regress bloom-mini --python {LONG}",
    f"reproduce bloom-mini --resume {LONG}",
    f"plan gpt2-124m --on h100-sxm --picture {LONG}.png",
    f"accept --junit {LONG}",
    f"dry-run bloom-mini --plot {LONG}",
    f"predict {LONG}.toml",
)


def test_a_name_longer_than_file_systems_take_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for words in LONG_NAMES:
        code, said = main(words.split()), capsys.readouterr().err
        if code != 2 or not only_line(said):
            wrong.append((words[:40], code, said))
    assert wrong == []


@pytest.mark.parametrize("command", ["regress bloom-mini", "reproduce bloom-mini --device cpu"])
def test_more_launches_than_anybody_waits_for_are_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--launches", "999999999999999999999"]) == 2
    assert "got 999999999999999999999, allowed: 1 to 1,000" in only_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", 2**63 - 64), ("rms_norm_eps", 1e308), ("initializer_range", 1e-320)]
)
def test_a_configuration_beyond_the_range_is_not_imported(
    key: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, _ = PUBLISHED["llama2-7b"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, key: value}), encoding="utf-8")
    assert main(["import", str(path), "--output", str(tmp_path / "run.toml")]) == 2
    assert all(line.startswith(f"error: {path}: ") for line in capsys.readouterr().err.splitlines())
    assert not (tmp_path / "run.toml").exists()
