"""Software stacks load with a source for every switch, and a framework's text finds the most specific of them."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.layout import Recomputation
from reference_runs.published import load_table
from reference_runs.published_tables import held_out_tables, load_tables, shipped_tables
from reference_runs.recorded_file import read_toml
from reference_runs.sourced import Kind
from reference_runs.stack import GENERIC, SIZES, STACKS, ContextParallel, matches, reading, stack, stack_of, stacks

SOURCES = read_toml(STACKS, what="stacks", known={"sources", "stacks"})["sources"]


def test_every_switch_has_a_fact_with_a_source_and_every_source_a_switch() -> None:
    wrong = []
    for name, recorded in stacks().items():
        assert recorded.title
        values = {**msgspec.to_builtins(recorded.switches), "layouts": ", ".join(recorded.layouts)}
        assert set(recorded.facts) == {f"stacks.{name}.{switch}" for switch in values}
        for switch, value in values.items():
            fact = recorded.facts[f"stacks.{name}.{switch}"]
            explained = fact.kind is not Kind.ASSUMED or (fact.why and fact.effect)
            if fact.value != value or not SOURCES[fact.source] or not explained:
                wrong.append((name, switch, fact))
    assert wrong == []
    assert {fact.source for recorded in stacks().values() for fact in recorded.facts.values()} == set(SOURCES)


def test_a_runs_software_executes_its_recorded_layout() -> None:
    lacking = {}
    for name in run_names():
        layout, software = reference_run(name).recorded_layout, reference_run(name).software
        if layout is None or software is None:
            continue
        needed = [axis for axis, field in SIZES.items() if getattr(layout, field) > 1]
        needed += [f"zero{layout.zero_stage}"] if layout.zero_stage and layout.state_ranks > 1 else []
        needed += [f"recompute-{layout.recomputation}"] if layout.recomputation is not Recomputation.NONE else []
        needed += ["sp"] if layout.sequence_parallel and layout.tensor_parallel > 1 else []
        lacking[name] = [word for word in needed if word not in stack_of(software.stack).layouts]
    assert len(lacking) > 5
    assert not any(lacking.values()), lacking


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
        of_like = msgspec.to_builtins(stack(like).switches)
        for switch, value in msgspec.to_builtins(stack(name).switches).items():
            assert value == entries[name].get(switch, {"value": of_like[switch]})["value"]
            inherited = stack(like).facts[f"stacks.{like}.{switch}"]
            assert switch not in entries[name] or stack(name).facts[f"stacks.{name}.{switch}"] != inherited


def test_an_unknown_framework_is_the_generic_one_and_a_stack_is_found_by_its_own_name() -> None:
    unknown = (None, "", "my own trainer", "MindSpore 1.7", "Nemotron's", "JAX")
    assert {text: stack_of(text).name for text in unknown} == dict.fromkeys(unknown, GENERIC)
    for name, recorded in stacks().items():
        assert stack(name) is stack_of(name) is recorded


def test_a_catalogued_run_trained_on_the_stack_that_its_software_names() -> None:
    trained = {
        **dict.fromkeys(("bloom-176b", "mt-nlg-530b"), "deepspeed-pipeline"),
        **dict.fromkeys(("gpt2-124m", "gpt2-1558m"), "llm-c"),
        **dict.fromkeys(("codegeex-13b", "llama2-70b"), GENERIC),
        **{"glm-130b": "glm-largescale", "gpt-neox-20b": "gpt-neox", "opt-175b": "metaseq"},
        **{"gpt3-175b": "megatron-lm-2021", "llama3.1-405b": "llama-3"},
    }
    software = {name: reference_run(name).software for name in trained}
    assert {name: stack_of(said and said.stack).name for name, said in software.items()} == trained


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
        assert stack_of(words, later=True).name == "deepspeed"
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
    rows = {row.stack for path in (*shipped_tables(), *held_out_tables()) for row in load_table(path).rows}
    runs = {stack_of(run.software.stack).name for name in run_names() if (run := reference_run(name)).software}
    assert rows | runs == set(stacks()) - {
        "deepspeed",
        "megatron-deepspeed-pipeline",
        "pytorch",
        "this-suite",
        "this-suite-eager",
        "torchtitan-async-tp",
        "torchtitan-compiled",
        "transformers",
    }


def test_letters_match_in_any_case_and_only_where_a_star_stands() -> None:
    assert matches("Megatron-LM*", "megatron-lm of 2022")
    assert matches("HF *", "hf accelerate")
    assert not matches("HF *", "hf")
    assert not matches("Megatron-LM", "Megatron-LM 2")


def test_attention_of_parts_of_a_sequence_is_fused_by_llama_3s_software_and_not_here() -> None:
    """Keys and values are gathered before attention (suite/execute/parallel/context_parallel.py)."""
    names = ("pytorch", "llama-3")
    assert all(stack(name).switches.context_parallel is ContextParallel.GATHERED for name in names)
    assert [name for name in names if "cp-fused" in stack(name).layouts] == ["llama-3"]
    assert "cp" in stack("llama-3").layouts
