from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.stale_losses import Launch, differences, main, table


def launch(variant: str, seed: int, final: float) -> Launch:
    return Launch(variant=variant, options="", seed=seed, losses=[9.0] * 18 + [final + 0.5, final - 0.5])


LAUNCHES = [
    *(launch("flushed", seed, final) for seed, final in enumerate((4.0, 4.2, 4.1))),
    *(launch("late", seed, final) for seed, final in enumerate((4.4, 4.3, 4.2))),
    *(launch("later", seed, final) for seed, final in enumerate((5.0, 5.0, 5.3))),
]


def test_a_variant_differs_by_more_than_the_seeds_where_its_mean_is_further_than_both_ranges() -> None:
    flushed, late, later = differences(LAUNCHES)
    assert (flushed.mean, flushed.least, flushed.most) == pytest.approx((4.1, 4.0, 4.2))
    assert (flushed.difference, flushed.beyond_seeds) == (0.0, False)
    assert (late.difference, late.beyond_seeds) == (pytest.approx(0.2), False)
    assert (later.difference, later.beyond_seeds) == (pytest.approx(1.0), True)


def test_launches_of_a_file_are_printed_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, picture = tmp_path / "losses.json", tmp_path / "losses.svg"
    stored.write_bytes(msgspec.json.encode(LAUNCHES))
    assert main(["gpt2-mini", "--read", str(stored), "--plot", str(picture)]) == 0
    assert capsys.readouterr().out == table(LAUNCHES) + "\n"
    assert table(LAUNCHES).splitlines()[-1] == "| later | 5.1000 | 5.0000 to 5.3000 | +1.0000 | yes |"
    assert picture.read_text().startswith("<?xml")


def test_without_variants_or_a_file_nothing_is_launched() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["gpt2-mini"])
    assert stopped.value.code == 2
