"""Software stacks load with a source for every switch, and a framework's text finds the most specific of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.layout import Recomputation
from reference_runs.published import load_table
from reference_runs.published_tables import load_tables, shipped_tables
from reference_runs.recorded_file import read_toml
from reference_runs.sourced import Kind
from reference_runs.stack import GENERIC, SIZES, STACKS, Stack, matches, reading, stack, stack_of, stacks

SOURCES = read_toml(STACKS, what="stacks", known={"sources", "stacks"})["sources"]


@pytest.mark.parametrize("name", stacks())
def test_every_switch_has_a_fact_with_a_source(name: str) -> None:
    recorded = stacks()[name]
    assert set(recorded.facts) == {f"stacks.{name}.{switch}" for switch in (*Stack.__struct_fields__, "layouts")}
    assert recorded.title
    values = {**msgspec.to_builtins(recorded.switches), "layouts": ", ".join(recorded.layouts)}
    for switch, value in values.items():
        fact = recorded.facts[f"stacks.{name}.{switch}"]
        assert fact.value == value
        assert SOURCES[fact.source]
        assert fact.kind is not Kind.ASSUMED or (fact.why and fact.effect)


@pytest.mark.parametrize("name", [name for name in run_names() if reference_run(name).software is not None])
def test_a_runs_software_executes_its_recorded_layout(name: str) -> None:
    run = reference_run(name)
    layout, software = run.recorded_layout, run.software
    if layout is None or software is None:
        pytest.skip("its layout is not published")
    executed = stack_of(software.stack).layouts
    sizes = {axis: getattr(layout, field) > 1 for axis, field in SIZES.items()}
    needed = [axis for axis, is_used in sizes.items() if is_used]
    needed += [f"zero{layout.zero_stage}"] if layout.zero_stage and layout.state_ranks > 1 else []
    needed += [f"recompute-{layout.recomputation}"] if layout.recomputation is not Recomputation.NONE else []
    needed += ["sp"] if layout.sequence_parallel and layout.tensor_parallel > 1 else []
    assert not [word for word in needed if word not in executed]


def test_every_source_is_used_by_a_switch() -> None:
    assert {fact.source for recorded in stacks().values() for fact in recorded.facts.values()} == set(SOURCES)


def test_an_unknown_stack_is_refused_by_one_line() -> None:
    with pytest.raises(InputError) as refused:
        stack("megatorn-core")
    line = "--stack: unknown stack; got 'megatorn-core', did you mean megatron-core? allowed: "
    assert str(refused.value) == line + ", ".join(stacks())


def test_a_stack_has_what_it_states_and_all_else_of_the_one_it_is_like() -> None:
    entries = read_toml(STACKS, what="stacks", known={"sources", "stacks"})["stacks"]
    likes = {name: entry["like"] for name, entry in entries.items() if "like" in entry}
    assert likes
    for name, like in likes.items():
        for switch in Stack.__struct_fields__:
            stated = entries[name].get(switch, entries[like][switch])
            assert msgspec.to_builtins(stack(name).switches)[switch] == stated["value"]
            assert switch not in entries[name] or entries[name][switch] != entries[like][switch]


@pytest.mark.parametrize("framework", [None, "", "my own trainer", "MindSpore 1.7", "Nemotron's", "JAX"])
def test_an_unknown_framework_is_the_generic_one(framework: str | None) -> None:
    assert stack_of(framework).name == GENERIC


@pytest.mark.parametrize("name", stacks())
def test_a_stack_is_found_by_its_own_name(name: str) -> None:
    assert stack(name) is stack_of(name) is stacks()[name]


@pytest.mark.parametrize(
    ("run", "expected"),
    {
        "bloom-176b": "deepspeed-pipeline",
        "mt-nlg-530b": "deepspeed-pipeline",
        "glm-130b": "glm-largescale",
        "gpt-neox-20b": "gpt-neox",
        "opt-175b": "metaseq",
        "gpt2-124m": "llm-c",
        "gpt2-1558m": "llm-c",
        "gpt3-175b": "megatron-lm-2021",
        "codegeex-13b": GENERIC,
        "llama2-70b": GENERIC,
    }.items(),
)
def test_a_catalogued_run_trained_on_the_stack_that_its_software_names(run: str, expected: str) -> None:
    software = reference_run(run).software
    assert stack_of(software and software.stack).name == expected


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("llm.c", "llm-c"),
        ("LLM.C (C and CUDA)", "llm-c"),
        ("gpt-neox (Megatron and DeepSpeed)", "gpt-neox"),
        ("LargeScale (fork of Megatron-DeepSpeed)", "glm-largescale"),
        ("Megatron-LM and DeepSpeed", "deepspeed-pipeline"),
        ("Megatron-DeepSpeed (BigScience fork)", "deepspeed-pipeline"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("DeepSpeed ZeRO-3", "deepspeed-zero3-2021"),
        ("Megatron-LM 2021", "megatron-lm-2021"),
        ("Megatron-LM 2024", "megatron-core"),
        ("Megatron-LM", "megatron-lm-2022"),
        ("NeMo/Megatron-Core", "megatron-core-nemo-2"),
        ("nanotron v0.5", "nanotron"),
        ("torchtitan", "pytorch"),
        # as people write them
        ("our fork of megatron lm", "megatron-lm-2022"),
        ("MEGATRON_LM (September 2021)", "megatron-lm-2021"),
        ("megatron-lm v2.5", "megatron-lm-2021"),
        ("Megatron-LM v2.0", "megatron-lm-early-2021"),
        ("Megatron-LM v3.0", "megatron-lm-2022"),
        ("Megatron-LM core_v0.5.0", "megatron-core"),
        ("Megatron-LM 24.07", "megatron-core"),
        ("MCore 0.8", "megatron-core"),
        ("nemo 2.0", "megatron-core-nemo-2"),
        ("NeMo 24.04, full CUDA graph", "megatron-core-cuda-graph"),
        ("NVIDIA NeMo Framework Release 23.09", "megatron-core-nemo-1"),
        ("NeMo 1.23", "megatron-core-nemo-1"),
        ("NeMo 24.07", "megatron-core-nemo-1"),
        ("NeMo 24.09", "megatron-core-nemo-2"),
        ("NeMo 2.0, NCCL 2.23.4", "megatron-core-nemo-2"),
        ("NeMo Framework 2.0, NCCL 2.23.4", "megatron-core-nemo-2"),
        ("NeMo 2.0, pytorch:23.10", "megatron-core-nemo-2"),
        ("nvcr.io/nvidia/nemo:24.12", "megatron-core-nemo-2"),
        ("NeMo25.02", "megatron-core-nemo-2"),
        ("NVIDIA NeMo", "megatron-core-nemo-2"),
        ("Megatron-Bridge 0.1", "megatron-core-nemo-2"),
        ("NeMo Framework 24.07", "megatron-core-nemo-1"),
        ("NeMo24.07", "megatron-core-nemo-1"),
        ("nvcr.io/nvidia/nemo:24.05", "megatron-core-nemo-1"),
        ("NeMo23.11", "megatron-core-nemo-1"),
        ("NeMo Framework 1.20", "megatron-core-nemo-1"),
        ("megatron_deepspeed", "megatron-deepspeed"),
        ("DeepSpeed + Megatron", "megatron-deepspeed"),
        ("Megatron-LM/DeepSpeed", "megatron-deepspeed"),
        ("deepspeed zero3", "deepspeed-zero3-2021"),
        ("GPT NeoX", "gpt-neox"),
        ("LLM Foundry (MosaicML)", "composer"),
        ("hf trainer", "pytorch-autocast"),
        ("PyTorch DDP with AMP", "pytorch-autocast"),
        ("PyTorch Lightning", "pytorch"),
        ("torch FSDP2", "pytorch"),
        ("metaseq, Megatron-LM 2.4", "metaseq"),
        ("TransformerEngine", "megatron-core"),
        ("llama-recipes", "pytorch"),
        # NeMo and Megatron-Core wherever they stand, PyTorch where nothing else does
        ("PyTorch NVIDIA Release 25.04", "megatron-core-nemo-2"),
        ("PyTorch NVIDIA Release 23.09", "megatron-core-nemo-1"),
        ("PyTorch NVIDIA Release 24.04, full CUDA graph", "megatron-core-cuda-graph"),
        ("NVIDIA PyTorch 24.05, Megatron Core", "megatron-core"),
        ("PyTorch, NVIDIA NeMo", "megatron-core-nemo-2"),
        ("torch 2.1, FSDP, NeMo 24.05", "megatron-core-nemo-1"),
        ("Megatron-LM (MCore 0.9)", "megatron-core"),
        ("PyTorch, Megatron-LM 2021", "megatron-lm-2021"),
        ("torch 2.3 / llm.c", "llm-c"),
        ("PyTorch with Transformer Engine", "pytorch"),
        ("PyTorch, FSDP, Transformer Engine", "pytorch"),
        # a version of two digits is a date
        ("Megatron-LM v25.9", "megatron-core"),
        ("Megatron-LM v23.06", "megatron-core"),
        ("rocm/megatron-lm:v25.4", "megatron-core"),
        ("Primus Megatron-LM v25.9", "megatron-core"),
        ("Megatron-LM v2", "megatron-lm-2021"),
        ("Megatron-LM v30", "megatron-lm-2022"),
        ("NeMo v24.07", "megatron-core-nemo-1"),
        ("NeMo24.09", "megatron-core-nemo-2"),
        ("Meg-DS", "megatron-deepspeed"),
        ("Megatron-DS", "megatron-deepspeed"),
        ("llmfoundry", "composer"),
        ("dgxc-benchmarking 25.02", "megatron-core-nemo-2"),
        ("DGX Cloud benchmarks", "megatron-core-nemo-2"),
        ("dgxc-benchmarking 24.05", "megatron-core-nemo-1"),
        ("DGX Cloud benchmarks, torchtitan", "pytorch"),
    ],
)
def test_a_framework_stands_for_the_most_specific_stack(framework: str, expected: str) -> None:
    assert stack_of(framework).name == expected


def test_each_of_the_words_finds_its_own_stack() -> None:
    for recorded in stacks().values():
        for words in recorded.frameworks:
            for text in (words.replace("*", " "), words.replace("*", " ").upper(), words.replace("-", "_")):
                assert stack_of(text).name == recorded.name, text


def test_pipeline_stages_and_later_accelerators_say_which_of_two_stacks_is_meant() -> None:
    split = reading("megatron_deepspeed", stages=True)
    assert split.stack.name == "megatron-deepspeed-pipeline"
    assert split.how == "'Megatron-DeepSpeed' with pipeline stages"
    # the engine of the recorded runs, less the wait that their configurations ask for
    engine = msgspec.structs.asdict(stack("deepspeed-pipeline").switches)
    assert msgspec.structs.asdict(split.stack.switches) == engine | {"synchronises_layers": False}
    assert stack_of("Megatron-DeepSpeed", stages=False).name == "megatron-deepspeed"
    assert stack_of("BigScience's Megatron-DeepSpeed", stages=True).name == "deepspeed-pipeline"
    assert stack_of("Megatron-LM", later=True).name == "megatron-core"
    # whoever says a version means it
    assert stack_of("Megatron-LM v3.0", later=True).name == "megatron-lm-2022"
    # a stage of ZeRO is no version
    for words in ("DeepSpeed ZeRO-3", "deepspeed zero stage 3"):
        assert stack_of(words, later=True).name == GENERIC
    assert stack_of("Meg-DS", stages=True).name == "megatron-deepspeed-pipeline"
    assert reading("nonesuch").how == "no stack is called 'nonesuch'"
    assert reading(None).how == "no framework is named"


@pytest.mark.parametrize(
    ("framework", "expected"),
    [("PyTorch", "megatron-core"), ("NVIDIA PyTorch 24.05", "megatron-core"), ("torch FSDP2", "pytorch")],
)
def test_pytorch_alone_has_no_pipeline_of_tensor_parallel_stages(framework: str, expected: str) -> None:
    read = reading(framework, stages=True, split=True)
    assert read.stack.name == expected
    assert ("alone, with tensor parallelism and pipeline stages" in read.how) == (expected == "megatron-core")
    assert stack_of(framework, stages=True).name == stack_of(framework).name == "pytorch"


def test_every_stack_is_named_by_a_text_a_table_or_the_command_line() -> None:
    by_tables = {name for table in load_tables().tables for name in table.stacks.values()}
    assert {name for name, recorded in stacks().items() if not recorded.frameworks} == {
        GENERIC,
        "megatron-deepspeed-pipeline",
    }
    assert "megatron-deepspeed" in by_tables
    assert stacks()["megatron-deepspeed"].with_stages == "megatron-deepspeed-pipeline"


def test_stacks_of_published_rows_and_runs_are_recorded() -> None:
    rows = {row.stack for path in shipped_tables() for row in load_table(path).rows}
    runs = {stack_of(run.software.stack).name for name in run_names() if (run := reference_run(name)).software}
    assert rows | runs == set(stacks()) - {"megatron-deepspeed-pipeline", "pytorch", "pytorch-autocast"}


def test_letters_match_in_any_case_and_only_where_a_star_stands() -> None:
    assert matches("Megatron-LM*", "megatron-lm of 2022")
    assert matches("HF *", "hf accelerate")
    assert not matches("HF *", "hf")
    assert not matches("Megatron-LM", "Megatron-LM 2")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[stacks.generic]", "[stacks.general]", "stacks.generic is missing"),
        ('title = "A framework that is not listed"', "title = 7", "stacks.generic.title: expected a text; got 7"),
        ('title = "A framework that is not listed"', "", "stacks.generic.title: expected a text; got None"),
        ('"choice", why = "between fused and not', '"rumour", why = "between fused and not', "rumour"),
        ("loss_share = { value = 0.7", "loss_share = { value = 1.7", "stacks.generic.loss_share"),
        ("loss_share = { value = 0.7", "loss_shares = { value = 0.7", "loss_shares"),
        (
            'layer_kernels = { value = 20, unit = "1", kind = "assumed"',
            'layer_kernels = { value = 0, unit = "1", kind = "assumed"',
            "stacks.generic.layer_kernels",
        ),
        ("[sources]", "[sources", "not valid TOML"),
        ("[sources]", "[sauces]", "sauces"),
        ('like = "megatron-lm-2022"', 'like = "megatron-lm-2020"', "stacks.gpt-neox.like; got 'megatron-lm-2020'"),
        ('like = "megatron-lm-2022"', 'like = "glm-largescale"', "stacks.gpt-neox.like: that stack is itself like"),
        ('newer = "', 'newer = "no-', ".newer; got 'no-"),
        ('with_stages = "', 'with_stages = "no-', ".with_stages; got 'no-"),
        ('split = "', 'split = "no-', ".split; got 'no-"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path, text = tmp_path / "mine.toml", STACKS.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        stacks(path)
    assert "mine.toml" in str(refused.value)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.toml: cannot read the stacks file: No such file"):
        stacks(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["pytorch", "pytorch-autocast"])
def test_the_suites_own_context_parallelism_hides_nothing(name: str) -> None:
    """Keys and values are gathered before attention (suite/execute/parallel/context_parallel.py)."""
    assert not stacks()[name].switches.overlaps_context_parallel
    assert "cp-fused" not in stacks()[name].layouts


def test_llama_3_was_trained_by_software_that_fuses_attention_of_parts_of_a_sequence() -> None:
    software = reference_run("llama3.1-405b").software
    assert software is not None
    recorded = stack_of(software.stack)
    assert (recorded.name, recorded.switches.overlaps_context_parallel) == ("llama-3", False)
    assert {"cp", "cp-fused"} < set(recorded.layouts)
