"""Results of loss curves: final losses, differences, the verdict, the picture."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import msgspec
import pytest

from benchmarks.convergence import Curve, Method, differences, main, medians, smoothed


def curve(method, losses, *, run="small", seed=1):
    return Curve(run=run, method=method, seed=seed, exact_steps=3, losses=losses)


def pair(exact, other, *, seed=1, run="small", method=Method.ONE_BIT):
    flat = [9.0] * 18
    return [
        curve(Method.EXACT, [*flat, exact, exact], seed=seed, run=run),
        curve(method, [*flat, other, other], seed=seed, run=run),
    ]


@pytest.fixture
def command(monkeypatch, capsys):
    def ran(*arguments):
        monkeypatch.setattr(sys, "argv", ["convergence", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=said.out, stderr=said.err)

    return ran


def test_the_final_loss_is_the_mean_of_the_last_tenth():
    assert curve(Method.EXACT, [5.0] * 18 + [2.0, 4.0]).final == 3.0
    assert curve(Method.EXACT, [5.0, 1.0]).final == 1.0


def test_a_difference_joins_a_method_with_exact_adam_of_the_same_run_and_seed():
    curves = [*pair(2.0, 2.2, seed=1), *pair(4.0, 3.0, seed=2), curve(Method.EXACT, [1.0], seed=3)]
    found = differences(reversed(curves))
    assert {(one.seed, round(one.relative, 9)) for one in found} == {(1, 0.1), (2, -0.25)}


def test_the_median_over_seeds_is_taken_for_each_run_and_method():
    curves = [c for seed, other in enumerate((2.0, 2.2, 3.0)) for c in pair(2.0, other, seed=seed)]
    curves += pair(1.0, 0.5, run="other", method=Method.RENEWED)
    found = medians(differences(curves))
    assert found == pytest.approx({("small", Method.ONE_BIT): 0.1, ("other", Method.RENEWED): -0.5})


def test_a_smoothed_loss_is_the_mean_of_the_ten_steps_that_end_there():
    losses = [float(n) for n in range(30)]
    assert smoothed(losses)[0] == 0.0
    assert smoothed(losses)[3] == 1.5
    assert smoothed(losses)[29] == 24.5


@pytest.mark.parametrize(("one_bit", "code"), [(2.019, 0), (2.021, 1)])
def test_the_limit_is_one_percent_of_the_exact_loss(command, tmp_path, one_bit, code):
    (tmp_path / "curves.json").write_bytes(msgspec.json.encode(pair(2.0, one_bit)))
    done = command("--read", tmp_path / "curves.json", "--plot", tmp_path / "curves.svg")
    assert done.returncode == code, done.stderr
    assert f"median over seeds {one_bit / 2 - 1:+.2%} (limit 1%)" in done.stdout
    picture = (tmp_path / "curves.svg").read_bytes()
    assert b"<svg" in picture
    command("--read", tmp_path / "curves.json", "--plot", tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == picture


@pytest.mark.parametrize("text", ["[", "{}", None])
def test_curves_that_cannot_be_read_are_refused_in_one_line(command, tmp_path, text):
    path = tmp_path / "curves.json"
    if text is not None:
        path.write_text(text)
    done = command("--read", path)
    assert done.returncode == 2
    assert "cannot read curves" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_run_is_refused(command):
    done = command("no-mini")
    assert done.returncode == 2
    assert "unknown run" in done.stderr
