"""Steps on paper: from counts of a step without and with an optimization, and recorded milliseconds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from benchmarks import expected_steps
from benchmarks.expected_steps import (
    RECORDED,
    Counts,
    RecordedStep,
    SavedMilliseconds,
    main,
    saving,
    scaled,
    step_milliseconds,
    utilisation,
)
from benchmarks.simulated_step import CountedStep, HostSeconds, LaunchKind, LoggedStep
from suite.first_hour.measurements import expected_steps as written_down

SETS = {"none": "none", "across-blocks": "across-blocks", "triton": "triton", "all": "across-blocks,epilogues"}


def counts(*, layer_gigabytes: float, launches: int, update_gigabytes: float = 6.0) -> Counts:
    """Counts of a run of 12 layers, with 5 GB beside them and 4 launches in the update."""

    def counted(layers: int) -> CountedStep:
        moved = 2 * (5 + layers * layer_gigabytes) + update_gigabytes
        return CountedStep(
            micro_batches=2,
            graphs=2,
            graph_breaks=0,
            compiled_bytes=round(1e9 * moved) - 7,
            operator_bytes=7,
            update_bytes=round(1e9 * update_gigabytes),
            step=LoggedStep(launches={LaunchKind.COMPILED: layers * launches // 6 + 4}, products=[], waits=[]),
            update=LoggedStep(launches={LaunchKind.COMPILED: 4}, products=[], waits=[]),
        )

    hosts = [HostSeconds(micro_batches=2, passes=[0.8 * s, s, 2 * s], update=[0.001] * 3) for s in (0.06, 0.1)]
    return Counts(12, counted(2), counted(4), *hosts)


def test_bytes_and_launches_are_those_of_a_micro_batch_without_the_update() -> None:
    own = counts(layer_gigabytes=5.0, launches=600)
    assert own.bytes == pytest.approx(65e9)
    assert own.layer_bytes == pytest.approx(5e9)
    assert own.launches() == own.launches(LaunchKind.COMPILED) == 600
    assert expected_steps.host_words(own) == "130 (80% to 200%)"  # 50 of 4 layers, and 10 of each further one


def test_each_part_shrinks_as_what_it_is_bound_by_and_gemms_do_not() -> None:
    recorded = RecordedStep(gemms=70.0, attention=20.0, others=39.0, idle=2.0, update=12.0, between_steps=1.0)
    plain = counts(layer_gigabytes=5.0, launches=600)
    assert step_milliseconds(recorded, saving(recorded, plain, plain), 8) == pytest.approx(8 * 131 + 13)
    fewer = counts(layer_gigabytes=4.0, launches=300, update_gigabytes=3.0)
    saved = saving(recorded, plain, fewer)
    assert saved == pytest.approx(SavedMilliseconds(by_bytes=39 * 12 / 65, by_launches=1.0, in_update=6.0))
    assert step_milliseconds(recorded, saved, 8) == pytest.approx(8 * (130 - 7.2) + 7)
    assert saved.words(8) == "bytes of other kernels: +57.6 ms saved"
    assert SavedMilliseconds(0.0, 0.0, 6.0).words(8) == "bytes of the update: +6.0 ms saved"
    assert SavedMilliseconds(0.001, 0.0, 0.0).words(8) == "nothing that is counted changes"


def test_recorded_parts_add_up_to_recorded_steps_and_their_mfu_is_the_recorded_one() -> None:
    nothing = SavedMilliseconds(0.0, 0.0, 0.0)
    for run, micro_batches, step, mfu in (("gpt2-124m", 8, 1037.7, 0.4364), ("gpt2-1558m", 4, 1405.5, 0.4842)):
        whole = step_milliseconds(RECORDED[run], nothing, micro_batches)
        assert whole == pytest.approx(step)
        assert utilisation(run, whole, micro_batches) == pytest.approx(mfu, abs=1e-4)
    with_once = scaled(RecordedStep(1.0, 1.0, 1.0, 1.0, 2.0, 3.0), step=45.0, micro_batches=4)
    assert with_once[:4] == pytest.approx([2.5] * 4)


def test_kept_counts_become_tables_and_what_first_hour_expects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_steps, "hows", lambda _: SETS)
    for how, own in (
        ("none", counts(layer_gigabytes=5.0, launches=600)),
        ("across-blocks", counts(layer_gigabytes=4.0, launches=600)),
        ("across-blocks+epilogues", counts(layer_gigabytes=3.0, launches=600)),
        ("triton", counts(layer_gigabytes=4.5, launches=600)),
    ):
        path = tmp_path / f"gpt2-124m__{how}.json"
        lines = (own.fewer, own.host_of_fewer, own.more, own.host_of_more)
        path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    assert main(["--counts", str(tmp_path), "--runs", "gpt2-124m"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if " | " in line][1:]
    assert [row[0] for row in rows] == [f"| {how}" for how in SETS]
    file = tmp_path / "expected.toml"
    assert main(["--counts", str(tmp_path), "--runs", "gpt2-124m", "--toml", str(file)]) == 0
    written = tomllib.loads(file.read_text())
    counted = {"gpt2-124m plain", "gpt2-124m across-blocks", "gpt2-124m triton", "gpt2-124m all"}
    assert set(written) == counted
    assert written["gpt2-124m triton"]["milliseconds"] == 1021.0  # it was measured
    assert written["gpt2-124m across-blocks"]["milliseconds"] < written["gpt2-124m plain"]["milliseconds"] == 1037.7


def test_what_is_written_down_is_ordered_as_what_each_saves() -> None:
    """All together and the default save more than one alone, and FP8 more than nothing."""
    steps = {name: step.milliseconds for name, step in written_down().items()}
    assert steps["gpt2-124m all"] < steps["gpt2-124m"] < steps["gpt2-124m epilogues"] < steps["gpt2-124m plain"]
    assert steps["gpt2-1558m-b64 fp8-current"] < steps["gpt2-1558m-b64 plain"]
    assert "gpt2-124m micro-batch-graph" not in steps  # nothing is predicted of it
