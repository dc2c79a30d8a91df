"""`import` writes a run file that `show` and `predict` take, never over another, and says what it leaves out."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from reference_runs.accelerator import ACCELERATORS
from reference_runs.catalog import load, reference_run
from reference_runs.incomplete import missing_keys
from reference_runs.sourced import Kind
from suite.__main__ import main
from suite.predict.analytic.parameters import parameter_count
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from tests.support.configurations import GPT_OSS, KIMI_K2, PUBLISHED, written

LLAMA, PARAMETERS = PUBLISHED["llama3.1-8b"]
CONFIGURATION = LLAMA | {
    "architectures": ["LlamaForCausalLM"],
    "_name_or_path": "meta-llama/Llama-3.1-8B",
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return written(Path("config.json"), CONFIGURATION).name


def test_the_file_is_a_run_of_the_published_size(configuration, capsys, said):
    assert main(["import", configuration, "--sequence", "8192", "--output", "my_run.toml"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "my_run.toml: meta-llama/Llama-3.1-8B (llama), 8,030,261,248 parameters" in words
    assert "not used: _name_or_path, architectures" in words
    run = load(Path("my_run.toml"))
    assert parameter_count(run.architecture) == PARAMETERS
    assert (run.architecture.sequence, run.recipe.init_std) == (8192, 0.02)
    assert "8,030,261,248 parameters" in said("show", "my_run.toml")
    predicted = said("predict", "my_run.toml", "--layout", "dp8,zero3")
    assert "assumed: " in predicted
    assert "not predicted: memory" not in predicted


def test_to_stdout_the_file_is_printed_alone(configuration, said):
    Path("printed.toml").write_text(said("import", configuration, "--output", "-"), encoding="utf-8")
    run = load(Path("printed.toml"))
    assert (run.architecture.sequence, run.recipe.precision) == (8192, "bf16")
    assert "up to 131,072" in run.facts["architecture.sequence"].why


def test_a_directory_is_read_and_what_is_no_configuration_or_run_says_what_to_do(configuration, said, refused):
    Path("model").mkdir()
    shutil.copy(configuration, "model/config.json")
    assert said("import", "model", "--output", "-") == said("import", configuration, "--output", "-")
    allowed = "a config.json, or its directory"
    line = refused("import", "org/model")
    assert line == f"org/model: cannot read the configuration: No such file or directory; allowed: {allowed}"
    line = refused("show", configuration)
    assert line.startswith("a configuration is no run: `import` writes a run file of it; got 'config.json', allowed: ")
    line = refused("predict", "llama3-8b")
    meant = "did you mean llama3.1-8b? allowed: a name that `runs` lists, a model by name (see `runs`), config.json, "
    meant += "or a file ending in .toml"
    assert line == f"unknown run; got 'llama3-8b', {meant}"
    line = refused("predict", "llama2-7b", "--micro-batch", "7")
    assert line.startswith("--micro-batch: does not divide the batch of 1,024 samples; got 7, allowed: a divisor")


def test_a_recipe_is_borrowed_as_an_assumption_and_makes_a_miniature(configuration):
    assert (
        main(["import", configuration, "--sequence", "8192", "--recipe", "llama2-70b", "--output", "my_run.toml"]) == 0
    )
    run, lender = load(Path("my_run.toml")), reference_run("llama2-70b")
    assert missing_keys(run.recipe) == ()
    for key, fact in run.facts.items():
        if fact.source.startswith("borrowed "):
            # the decay is of the same tokens, in sequences twice as long as the lender's
            wanted = lender.recipe.decay // 2 if key == "recipe.decay" else lender.facts[key].value
            assert (fact.kind, fact.value) == (Kind.ASSUMED, wanted), key
            assert "llama2-70b" in fact.why
    own = ("recipe.init_std", "recipe.embedding_dropout", "recipe.hidden_dropout", "recipe.attention_dropout")
    assert all(not run.facts[key].source.startswith("borrowed ") for key in own)
    assert run.recorded_layout is None
    planned = plan(Request(name="my_run.toml", mini=True, device="cpu", results=Path()))
    assert (planned.name, planned.layout.data_parallel) == ("my-run-mini", 2)


def test_json_says_what_was_written(configuration, answered):
    entry = answered("import", configuration, "--output", "my_run.toml")
    assert (entry["run"], entry["parameters"]) == ("my_run.toml", PARAMETERS)
    assert entry["not_used"] == ["_name_or_path", "architectures"]


REFUSED = [
    ("--output run.txt", "--output: not a run file's name; got run.txt, allowed: one ending in .toml\n"),
    (
        "--output here.toml",
        "--output: the file exists, and is not overwritten; got here.toml, allowed: a new name, or --force\n",
    ),
    ("--output none/a.toml", "--output: cannot write: No such file or directory; got none/a.toml\n"),
    ("--json --output -", "--output: the run file itself goes to stdout; allowed: a file\n"),
]


def test_what_cannot_be_written_is_refused(configuration, not_refused):
    Path("here.toml").write_text("mine", encoding="utf-8")
    assert not_refused(f"import {configuration}", REFUSED) == []
    assert Path("here.toml").read_text(encoding="utf-8") == "mine"


def test_a_configuration_that_is_not_described_writes_nothing(tmp_path, refused):
    path = written(tmp_path / "config.json", CONFIGURATION | {"hidden_act": "snake"})
    line = refused("import", str(path), "--output", str(tmp_path / "my_run.toml"))
    assert line.startswith(f'{path}: hidden_act; got "snake", allowed: silu, ')
    assert not (tmp_path / "my_run.toml").exists()


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_options_that_a_borrowed_recipe_excludes_leave_no_file(tmp_path, configuration, refused, json):
    """A batch of 7 ends below the one that the recipe's ramp-up begins with."""
    path = tmp_path / "my_run.toml"
    line = refused("import", configuration, "--recipe", "bloom-176b", "--batch", "7", "--output", str(path), *json)
    assert "batch" in line
    assert not path.exists()


DENSE = ("llama3.1-8b", "llama3.1-70b", "tinyllama", "mistral-7b", "qwen3-8b", "phi-4", "gemma-7b", "gpt2-xl")
MODELS = {name: PUBLISHED[name][0] for name in (*DENSE, "qwen3-30b-a3b", "mixtral-8x7b")} | {
    "kimi-k2": KIMI_K2,
    "gpt-oss": GPT_OSS,
}


@pytest.mark.parametrize("model", MODELS)
def test_a_configuration_is_two_commands_from_an_answer(model, tmp_path, monkeypatch, said):
    """The last line that `import` prints is a command that runs."""
    monkeypatch.chdir(tmp_path)
    said("import", written(tmp_path / f"{model}.json", MODELS[model]).name)
    said("import", f"{model}.json")  # a second time too: the file says the same
    (printed,) = (line for line in said("import", f"{model}.json").splitlines() if line.startswith("next: "))
    assert printed.startswith(f"next: python -m suite fit {Path(model).name}.toml --on h100-sxm --gpus ")
    answer = said(*shlex.split(printed.partition(" suite ")[2]))
    assert answer.startswith("fits (")


def test_options_are_written_into_the_file_and_mean_the_same_to_other_commands(configuration, said, answered):
    options = ("--precision", "bf16-pure", "--batch", "512", "--tokens", "1e12", "--network", "1600", "--gpus", "64")
    options += ("--on", "h200", "--stack", "megatron-core", "--sequence", "4096")
    said("import", configuration, "--output", "own.toml", *options)
    said("import", configuration, "--output", "plain.toml")
    plain = answered("plan", "plain.toml", *options)
    assert (plain.pop("run"), plain["assumed"]) == ("plain.toml", [])
    own = answered("plan", "own.toml")
    assert own.pop("run") == "own.toml"
    assert own == plain


def test_an_accelerator_is_written_by_its_name_and_a_file_of_ones_own_by_its_path(configuration, said):
    sheet = (ACCELERATORS / "h100_sxm.toml").read_text(encoding="utf-8")
    Path("board.toml").write_text(sheet, encoding="utf-8")
    for on, written_as in (("h100", "h100-sxm"), ("board.toml", "board.toml")):
        output = f"on-{on.partition('.')[0]}.toml"
        said("import", configuration, "--output", output, "--on", on, "--gpus", "64")
        assert load(Path(output)).cluster.accelerator == written_as
        assert " with generic" in said("predict", output, "--layout", "dp8,tp8")


def test_a_micro_batch_goes_into_the_printed_command(configuration, said):
    out = said("import", configuration, "--micro-batch", "2")
    assert out.splitlines()[-1].endswith(" --micro-batch 2")


def test_a_sequence_beyond_the_longest_is_said(configuration, said):
    out = " ".join(said("import", configuration, "--sequence", "262144").split())
    assert "note: sequences of 262,144 tokens, and the configuration allows 131,072" in out


UNDESCRIBED = {
    "qwen2_5_vl": ({"vision_config": {"depth": 32}}, "a vision part"),
    "whisper": ({"num_mel_bins": 80}, "an audio part"),
    "t5": ({"is_encoder_decoder": True}, "an encoder"),
    "mamba2": ({"state_size": 128}, "linear attention or state-space layers"),
    "unheard_of": ({"layer_types": ["linear_attention", "full_attention"]}, "linear attention in 1 of 2 layers"),
    "gemma2": ({}, "soft caps of logits and scores"),
    "granite": ({}, "factors on embeddings, residuals and logits"),
}


@pytest.mark.parametrize("kind", UNDESCRIBED)
def test_a_model_that_is_not_described_is_refused_with_its_reason(kind, tmp_path, refused):
    values, reason = UNDESCRIBED[kind]
    path = written(tmp_path / "config.json", {"model_type": kind} | values)
    line = refused("import", str(path))
    assert line.startswith(f"{path}: model_type '{kind}' is not described: it has {reason}")
    assert "allowed" not in line
    assert "did you mean" not in line


def test_a_misspelt_model_type_is_told(tmp_path, refused):
    line = refused("import", str(written(tmp_path / "config.json", {"model_type": "lama"})))
    assert line.endswith("no model of that type was read; `predict` and `fit` trace it; did you mean llama?")
