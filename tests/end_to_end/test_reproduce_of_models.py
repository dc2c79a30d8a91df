"""`reproduce` of any model: what its trace expects is what ranks count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from tests.execute.trace import models

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]

FILE = str(Path(models.__file__))
EXACT = {"parameters", "model_flop", "hardware_flop", "weight_bytes", "gradient_bytes", "optimizer_bytes"}
SENT = {"payload_bytes", "messages"}
MEMORY = frozenset({"activation_bytes", "peak_bytes"})
SHARDED = frozenset({"activation_bytes"})  # gloo's threads free messages late, which shows in the peak
LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
LLAMA |= {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 4096, "head_dim": 64}


def reproduced(capsys: pytest.CaptureFixture[str], results: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """The answer of `reproduce` to these words."""
    assert main(["reproduce", *words, "--device", "cpu", "--steps", "6", "--results", str(results), "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def check(answer: dict[str, Any], *, exact: set[str], memory: frozenset[str] = MEMORY) -> None:
    """Every figure that is to be equal is, and sizes of memory are judged."""
    assert answer["verdict"] == "pass", [row for row in answer["figures"] if row["verdict"] == "fail"]
    judged = {row["quantity"]: row["tolerance"] for row in answer["figures"] if row["verdict"] == "pass"}
    assert {quantity for quantity, tolerance in judged.items() if tolerance == 0} == exact
    assert {quantity for quantity, tolerance in judged.items() if tolerance} == memory


def test_a_module_of_ones_own_is_trained_by_two_fsdp_ranks_as_its_trace_says(capsys, tmp_path) -> None:
    answer = reproduced(capsys, tmp_path, f"{FILE}:build", "--layout", "dp2,zero3,recompute-full,accumulate2")
    check(answer, exact=EXACT | SENT, memory=SHARDED)
    assert answer["run"] == "models-build"
    # a record is judged again by what its trace expected
    assert main(["results", "show", "latest", "--results", str(tmp_path)]) == 0
    assert "verdict: pass" in capsys.readouterr().out.splitlines()


def test_a_module_that_brings_its_inputs_is_trained_by_one_rank(capsys, tmp_path) -> None:
    check(reproduced(capsys, tmp_path, f"{FILE}:with_inputs", "--ranks", "1"), exact=EXACT)


def test_a_miniature_of_a_configuration_is_trained_by_two_replicas(capsys, tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **LLAMA}))
    answer = reproduced(capsys, tmp_path, str(path), "--mini", "--layout", "dp2")
    check(answer, exact=EXACT | SENT)
    assert answer["run"] == "transformers-llama-mini"
    width, heads, layers = 256, 4, 2  # of 2048, 32 of size 64, and 16
    layer = 2 * width * 64 * (heads + 1) + 3 * width * 1024 + 2 * width
    (parameters,) = [
        row["right"] for row in answer["figures"] if (row["quantity"], row["rank"]) == ("parameters", None)
    ]
    assert parameters == 2 * 1024 * width + layers * layer + width


@pytest.mark.rare  # 40 s of compilation
def test_compiled_layers_count_as_eager_ones(capsys, tmp_path) -> None:
    check(
        reproduced(capsys, tmp_path, f"{FILE}:build", "--layout", "dp2,zero3", "--compile"),
        exact=EXACT | SENT,
        memory=SHARDED,
    )


def test_a_module_that_fails_in_a_rank_ends_as_a_crash_with_a_record(capsys, tmp_path) -> None:
    answer = reproduced(capsys, tmp_path, f"{FILE}:fails", "--ranks", "1", code=4)
    assert answer["status"] == "crashed"
    assert "ValueError: no numbers, please" in answer["message"]
    assert Path(answer["record"]).is_file()
