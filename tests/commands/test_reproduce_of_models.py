"""`reproduce` of any model refuses what it cannot launch, in a line and before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.execute.trace import models

pytestmark = pytest.mark.ranks

FILE = str(Path(models.__file__))


def test_what_cannot_be_launched_gets_one_line(reproduce_refused, tmp_path) -> None:
    huge = tmp_path / "huge.json"
    huge.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 2**17}))
    table = (
        ((f"{FILE}:nothing", "--ranks", "1"), "has no function nothing"),
        ((str(huge), "--ranks", "1"), "GiB are free"),
        ((f"{FILE}:with_inputs", "--ranks", "1", "--micro-batch", "2"), "the function brings its inputs"),
        # before anything is traced
        ((f"{tmp_path}/none.json", "--mini"), "no such file"),
        ((f"{FILE}:build", "--mini"), "--mini: a module of your own is as large as it builds itself"),
        ((f"{FILE}:build", "--layout", "tp2"), "allowed: dpN, zero0"),
        ((f"{FILE}:build", "--layout", "dp2", "--ranks", "4"), "--layout dp2 is 2 ranks"),
        ((f"{FILE}:build", "--stage", "0"), "--stage: applies to runs alone"),
        ((f"{FILE}:build", "--layout", "selective-op"), "is predicted, not launched"),
        ((f"{FILE}:build", "--steps", "5"), "too few steps"),
        ((f"{FILE}:build", "--global-batch", "3", "--ranks", "2"), "no multiple of replicas"),
    )
    wrong = {words: line for words, said in table if said not in (line := reproduce_refused(*words))}
    assert wrong == {}
