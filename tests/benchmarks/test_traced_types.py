"""The table of traced types says of each type once what became of it."""

from __future__ import annotations

from benchmarks.traced_types import TracedType, page

INSIDE = "/lib/python3/site-packages/transformers/models/blt/modeling_blt.py:12"
FOUND = [
    TracedType(kind="afmoe", software="transformers 5.23.0", model="AfmoeForCausalLM", parameters=10, seconds=2.0),
    TracedType(kind="blt", refusal="raises KeyError: 'a|b'", place=INSIDE),
    TracedType(kind="llama", software="transformers 5.23.0", model="LlamaForCausalLM", parameters=20, seconds=3.0),
    TracedType(kind="odd", refusal="the forward pass returns no tensor with gradients, but a value of type int"),
]


def test_every_type_stands_in_one_of_three_tables() -> None:
    text = page(FOUND)
    assert "type of transformers 5.23.0: 128 tokens" in text
    assert "Of 4 types 2 answer, 1 are refused by this project and 1 raise inside transformers" in text
    assert "The slowest, `llama` with 20 parameters, takes 3 s of a processor" in text
    _, refused, raising, answered = text.split("## ")
    assert [each.kind for each in FOUND if f"| `{each.kind}` |" in refused] == ["odd"]
    assert [each.kind for each in FOUND if f"| `{each.kind}` |" in raising] == ["blt"]
    assert [each.kind for each in FOUND if f"| `{each.kind}` |" in answered] == ["afmoe", "llama"]
    assert "raises KeyError: 'a\\|b' (models/blt/modeling_blt.py:12)" in raising
