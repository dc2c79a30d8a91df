"""A run file that is launched in a test."""

from __future__ import annotations

from reference_runs.catalog import RUNS

TINY = {  # of the recorded run, small enough for a step of a few milliseconds
    "layers": 2,
    "hidden": 32,
    "heads": 2,
    "head_dim": 16,
    "kv_heads": 2,
    "ffn_hidden": 64,
    "vocabulary": 512,
    "padded_vocabulary": 512,
    "sequence": 32,
    "global_batch": 4,
    "micro_batch": 1,
    "data_parallel": 2,
    "tensor_parallel": 1,
    "pipeline_stages": 1,
    "accumulation": 2,
}


def run_file(path, **changes):
    """BLOOM's record with the values of TINY and `changes`, without its cluster and its ramp-up of the batch."""
    values = TINY | changes
    lines = []
    text = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8").partition("[[measured]]")[0]
    for line in text.splitlines():
        key = line.partition(" =")[0]
        if key.startswith("batch_rampup"):
            continue
        if key in values:
            head, _, tail = line.partition("value = ")
            line = f"{head}value = {values.pop(key)},{tail.partition(',')[2]}"
        lines.append(line)
    assert not values
    text = "\n".join(lines)
    path.write_text(text[: text.index("[cluster]")] + text[text.index("[software]") :], encoding="utf-8")
    return path
