"""The form of a refusal, and run files with one mistake."""

from __future__ import annotations

from reference_runs.catalog import RUNS

RECORDED = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")


LAYERS = 'layers = { value = 70, unit = "1", kind = "stated", source = "slurm" }'


LAYOUT_NOT_EXECUTED = (
    "this version does not execute that layout; got {}, allowed: dpN, epN, "
    "tpN, sp with tpN, cpN, ppN, interleaveN, gpipe, "
    "1f1b, zero-bubble, zbv, dualpipev, "
    "pipedream/pipedream-vertical-sync/pipedream-2bw with ppN and dpN or replicasN-N-… (zero0) alone, "
    "zero0/1, layersN-N-…, reduce-scatter, all-reduce, zero2/3 without ppN, shardN, reshard, noreshard, "
    "offload with zero2/3, "
    "recompute-none/selective/full, everyN, fused with a plain causal mask, microN, accumulateN, bucketN"
)


def only_line(err):
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err.removeprefix("error: ").rstrip("\n")


def broken(tmp_path, old, new):
    """The recorded run with one text replaced, as a file of the user."""
    assert old in RECORDED
    path = tmp_path / "my_run.toml"
    path.write_text(RECORDED.replace(old, new, 1), encoding="utf-8")
    return path


def without_section(name):
    """The text of one section of the recorded run, to be taken out."""
    start = RECORDED.index(f"[{name}]")
    return RECORDED[start : RECORDED.index("\n[", start) + 1]
