"""Stored kernel benchmarks: one stored run is one launch, rounds are none, and the same rules decide."""

from __future__ import annotations

import json

from suite.__main__ import main
from suite.paths import RECORDED
from suite.records.kernel_runs import kernel_runs
from suite.regression.kernel_benchmarks import NO_RERUN, changed_software, compared_sides, kernel_findings
from suite.regression.verdicts import ChangeVerdict
from tests.support.histories import normal_launches

STORED = RECORDED / "kernels"
KERNELS = ("rotary-fp32-forward-plain", "adamw-fp32-forward-plain")


def store(storage, number, commit, seconds, *, cpu="AMD EPYC", dirty=False, torch="2.13.0"):
    """One stored run in which every kernel took `seconds`, and eager PyTorch ten times that in one round of many."""
    benchmarks = [
        {
            "name": f"test_seconds[{name}]",
            "stats": {"median": value, "rounds": 40},
            "extra_info": {"form": "eager" if "eager" in name else "plain"},
        }
        for name, value in [*((name, seconds) for name in KERNELS), ("adamw-fp32-forward-eager", 10 * seconds)]
    ]
    facts = {
        "machine_info": {"cpu": cpu, "cores": "2", "torch": torch},
        "commit_info": {"id": 40 * commit, "dirty": dirty},
        "datetime": f"2026-11-22T06:{number:02d}:00+00:00",
        "benchmarks": benchmarks,
    }
    path = storage / "Linux" / f"{number:04d}_{40 * commit}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts))


def series(storage, order, **factors):
    """A run a letter of `order`, the letter being its commit; factors by letter."""
    for number, (commit, seconds) in enumerate(zip(order, normal_launches(5, len(order)), strict=True)):
        store(storage, number, commit, seconds * factors.get(commit, 1.0))
    return kernel_runs(storage)[0]


def test_the_stored_run_of_this_repository_is_read():
    runs, bad = kernel_runs(STORED)
    assert bad == []
    assert runs[0].number == "0001"
    assert runs[0].hardware["cpu"] == "AMD EPYC"
    assert set(runs[0].software) >= {"torch", "triton", "python_version"}
    assert all(name.endswith(("-plain", "-kernel")) for name in runs[0].seconds)
    assert len(runs[0].seconds) > 80


def test_what_a_benchmark_does_not_say_is_not_known(tmp_path):
    series(tmp_path, "a")
    (path,) = tmp_path.rglob("*.json")
    facts = json.loads(path.read_text())
    facts["benchmarks"] = facts["benchmarks"][:1]
    facts["benchmarks"][0]["extra_info"] = {}
    path.write_text(json.dumps(facts))
    (run,) = kernel_runs(tmp_path)[0]
    (case,) = (benchmark.extra_info for benchmark in run.benchmarks)
    assert (case.least_bytes, case.copy_bytes_per_second, case.sizes) == (0, 0, {})
    assert {case.kernel, case.variant, case.dtype, case.direction} == {""}
    assert case.form == "kernel"
    assert len(run.seconds) == 1
    facts["benchmarks"][0]["stats"]["median"] = 0.0  # no ratio to it
    path.write_text(json.dumps(facts))
    assert kernel_runs(tmp_path)[0][0].seconds == {}


def test_a_run_is_one_launch_of_every_kernel_of_ours(tmp_path):
    runs = series(tmp_path, "aab")
    before, after = compared_sides(runs, None)
    assert [run.number for run in before] == ["0000", "0001"]
    found = kernel_findings(before, after, runs)
    assert [one.quantity for one in found] == list(KERNELS)
    assert {(one.before_launches, one.after_launches, one.family) for one in found} == {(2, 1, 2)}
    assert {one.change for one in found} == {ChangeVerdict.UNCALIBRATED}


def test_runs_stored_in_turn_confirm_themselves_and_others_leave_a_change_inconclusive(tmp_path):
    runs = series(tmp_path / "turns", 14 * "ab", b=1.2)
    found = kernel_findings(*compared_sides(runs, None), runs)
    assert {one.change for one in found} == {ChangeVerdict.REGRESSION}
    assert {(one.before_launches, one.after_launches) for one in found} == {(7, 7)}
    assert all(one.rerun is not None and 1.15 < one.rerun < 1.25 for one in found)
    runs = series(tmp_path / "one after the other", 14 * "a" + 7 * "b", b=1.2)
    found = kernel_findings(*compared_sides(runs, None), runs)
    assert {(one.change, one.why, one.rerun) for one in found} == {(ChangeVerdict.INCONCLUSIVE, NO_RERUN, None)}


def test_other_hardware_and_modified_checkouts_are_not_mixed(tmp_path):
    store(tmp_path, 1, "a", 1.0)
    store(tmp_path, 2, "a", 1.0, cpu="another")
    store(tmp_path, 3, "a", 1.0, dirty=True)
    store(tmp_path, 4, "a", 1.0, cpu="another")
    store(tmp_path, 5, "b", 1.0)
    runs, _ = kernel_runs(tmp_path)
    before, after = compared_sides(runs, None)
    assert ([run.number for run in before], [run.number for run in after]) == (["0003"], ["0005"])
    assert [run.number for run in compared_sides(runs, "0001")[0]] == ["0001"]
    assert compared_sides(runs[1:2], None) == ([], [runs[1]])


def test_the_command_says_what_is_missing(tmp_path, capsys):
    results = tmp_path / "results"
    assert main(["regress", "kernels", "--results", str(results)]) == 2
    assert "no stored kernel benchmark" in capsys.readouterr().err
    series(results / "kernels", "a")
    assert main(["regress", "kernels", "--results", str(results)]) == 3
    assert "kernels: 1 launches, no baseline" in capsys.readouterr().out
    series(results / "kernels", 14 * "ab", b=1.2)
    (results / "kernels" / "damaged.json").write_text("{")
    assert main(["regress", "kernels", "--results", str(results), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["comparisons"][0]["findings"][0]["change"] == "regression"
    assert "damaged.json: damaged benchmark" in " ".join(err.split())


def test_kernels_stand_alone_and_an_unknown_baseline_lists_what_is_stored(tmp_path, capsys):
    series(tmp_path / "kernels", "ab")
    for more, line in (
        (["bloom-mini"], "kernels are compared alone"),
        (["--accept"], "kernels are compared alone"),
        (["--baseline", "0009", "--results", str(tmp_path)], "allowed: 0000 (aaaaaaaaaaaa)"),
    ):
        assert main(["regress", "kernels", *more]) == 2
        assert line in capsys.readouterr().err


def test_the_baseline_is_the_commit_before_the_newest_on_the_newest_ones_hardware(tmp_path):
    store(tmp_path, 1, "z", 1.0, cpu="another")
    for number, commit in enumerate("aabbcc", start=2):
        store(tmp_path, number, commit, 1.0)
    runs, _ = kernel_runs(tmp_path)
    before, after = compared_sides(runs, None)
    assert [run.commit[0] for run in [*before, *after]] == list("bbcc")
    assert [run.commit[0] for run in compared_sides(runs, "a")[0]] == list("aa")
    assert [run.commit[0] for run in compared_sides(runs, "0004")[0]] == list("bb")
    assert [run.commit[0] for run in compared_sides(runs, "0002")[0]] == list("aa")
    assert compared_sides([], None) == ([], [])


def test_runs_are_in_turn_from_two_of_each_on_that_alternate_and_half_of_the_fewer_comes_first(tmp_path):
    found = {}
    for order in ("ab", "abab", "aba", "abba", "aabb", "ababa"):
        runs = series(tmp_path / order, order)
        sides = [[run for run in runs if run.commit[0] == letter] for letter in "ab"]
        (found[order],) = {(one.before_launches, one.after_launches) for one in kernel_findings(*sides, runs)}
    alternate = {"abab": (1, 1), "ababa": (1, 1)}
    assert found == {"ab": (1, 1), "aba": (2, 1), "abba": (2, 2), "aabb": (2, 2)} | alternate


def test_a_commit_whose_hash_comes_first_can_be_the_newest(tmp_path):
    runs = series(tmp_path, "bbbaa")
    before, after = compared_sides(runs, None)
    assert [run.number for run in [*before, *after]] == ["0000", "0001", "0002", "0003", "0004"]
    assert {one.before_launches for one in kernel_findings(before, after, runs)} == {3}


def test_the_floor_is_of_ten_runs_of_one_commit_on_the_newest_ones_hardware(tmp_path):
    for name, others in (("alike", {}), ("hardware", {"cpu": "x"}), ("modified", {"dirty": True})):
        for number, seconds in enumerate(normal_launches(6, 10)):
            store(tmp_path / name, number, "a", seconds, **(others if number == 4 else {}))
        store(tmp_path / name, 10, "b", 1.0)
        runs, _ = kernel_runs(tmp_path / name)
        found = kernel_findings(runs[:3], runs[10:], runs)
        assert {one.change is ChangeVerdict.UNCALIBRATED for one in found} == {bool(others)}
        assert {one.run for one in found} == {"kernels"}


def test_a_kernel_that_one_run_lacks_is_not_compared(tmp_path):
    for number, commit in enumerate("aab"):
        store(tmp_path, number, commit, 1.0)
    path = sorted(tmp_path.rglob("*.json"))[1]
    facts = json.loads(path.read_text())
    facts["benchmarks"] = facts["benchmarks"][1:]
    path.write_text(json.dumps(facts))
    runs, _ = kernel_runs(tmp_path)
    assert [one.quantity for one in kernel_findings(runs[:2], runs[2:], runs)] == [KERNELS[1]]


def test_software_that_changed_is_named_with_both_versions(tmp_path):
    store(tmp_path, 1, "a", 1.0, torch="2.13.0")
    store(tmp_path, 2, "b", 1.0, torch="2.14.0")
    runs, _ = kernel_runs(tmp_path)
    assert changed_software(runs[:1], runs[1:]) == "torch 2.13.0 -> 2.14.0"
    assert changed_software(runs[1:], runs[:1]) == "torch 2.14.0 -> 2.13.0"
    assert changed_software(runs[::-1], runs) == "torch 2.13.0 -> 2.14.0"  # of the last on either side
    assert changed_software(runs[:1], runs[:1]) == ""
