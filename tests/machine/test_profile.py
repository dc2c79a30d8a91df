"""A profile's file is whole, of this machine and of a known version, or it is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from reference_runs.architecture import Architecture
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Recipe
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import Profile, check_holds, current_profile, decode, encode, machines_directory, read
from suite.machine.timing_tables import Subject, fitted
from suite.paths import RECORDED
from tests.support.profiles import HERE, profile, timing


def stored(results: Path, data: bytes, name: str = "a.json") -> Path:
    directory = machines_directory(results)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(data)
    return path


def test_a_profile_survives_its_file_in_any_white_space() -> None:
    assert decode(encode(profile()), "file") == profile()
    assert decode(json.dumps(json.loads(encode(profile())), indent=3).encode(), "file") == profile()


def test_a_recorded_profile_is_written_again_with_the_names_that_it_has() -> None:
    path = next(machines_directory(RECORDED).glob("*.json"))
    recorded = json.loads(path.read_bytes())["profile"]
    assert recorded["conditions"]["cpu_speed"]
    assert recorded["reference_steps"]
    written = json.loads(encode(read(path)))["profile"]
    for again, before in zip(written["reference_steps"], recorded["reference_steps"], strict=True):
        for name, kind in (("architecture", Architecture), ("recipe", Recipe), ("layout", Layout)):
            defaults = {field.name: field.default for field in msgspec.structs.fields(kind) if not field.required}
            for key in again["step"][name].keys() - before["step"][name].keys():
                default = msgspec.json.decode(msgspec.json.encode(defaults[key]))
                assert again["step"][name].pop(key) == default
    assert written | {"partial": False} == recorded | {"partial": False}


def test_what_is_no_whole_profile_of_a_known_version_is_refused_in_one_line() -> None:
    data = encode(profile()).rstrip()
    whole = json.loads(data)
    edited = []
    for edit in (
        lambda content: content["tables"][0]["timings"][0].__setitem__(0, 1e-9),
        lambda content: content["lines"][0].__setitem__("fixed_seconds", 0.0),
        lambda content: content["fingerprint"].__setitem__("node", "ffffffff"),
        lambda content: content.__setitem__("note", "mine"),
        lambda content: content.clear(),
    ):
        other = json.loads(data)
        edit(other["profile"])
        edited.append(json.dumps(other).encode())
    versions = [json.dumps(whole | {"schema": schema}).encode() for schema in ("11.0", "9.1", "", "x")]
    for refused, line in (
        (
            [data[: int(share * len(data))] for share in (0.0, 0.3, 0.999)],
            "damaged machine profile, truncated perhaps: ",
        ),
        (edited, "the machine profile was changed after it was measured"),
        (versions, "unknown schema version of a machine profile; got "),
        ([b"[]", b"3", b"null", b'"text"'], "not a machine profile"),
    ):
        for one in refused:
            with pytest.raises(InputError) as refusal:
                decode(one, "file")
            assert str(refusal.value).startswith(f"file: {line}")
            assert "\n" not in str(refusal.value)
    assert decode(json.dumps(whole | {"schema": "10.7"}).encode(), "file") == profile()


def test_a_profile_of_another_machine_or_of_other_software_is_refused_by_what_differs() -> None:
    stale = "a stale machine profile"
    for changes, line in (
        ({"node": "99999999"}, "a machine profile of another machine; got 99999999, allowed: 0123abcd"),
        ({"device": "cuda"}, f"{stale}: device has changed; got cuda, allowed: cpu"),
        ({"hardware": {"cpu": "A", "cores": "4"}}, f"{stale}: cores has changed; got 4, allowed: 2"),
        ({"software": {"torch": "2.12.1"}}, f"{stale}: torch has changed; got 2.12.1, allowed: 2.13.0"),
        ({"software": {}}, f"{stale}: torch has changed; got nothing, allowed: 2.13.0"),
    ):
        other = msgspec.structs.replace(HERE, **changes)
        with pytest.raises(InputError) as refusal:
            check_holds(profile(fingerprint=other), HERE, "file")
        assert str(refusal.value) == f"file: {line}"
        assert (other.hash == HERE.hash) == ("node" in changes)


def test_the_newest_valid_profile_counts_whatever_its_file_is_called(tmp_path: Path) -> None:
    stored(tmp_path, encode(profile(measured=1000.0)), "a.json")
    stored(tmp_path, encode(profile(measured=3000.0)), "b.json")
    stored(tmp_path, encode(profile(measured=2000.0)), "c.json")
    stored(tmp_path, encode(profile(measured=4000.0))[:-100], "d.json")
    stored(
        tmp_path, encode(profile(measured=5000.0, fingerprint=msgspec.structs.replace(HERE, node="other"))), "e.json"
    )
    found, where = current_profile(tmp_path, HERE)
    assert found is not None
    assert (found.measured, where) == (3000.0, str(tmp_path / "machines" / "b.json"))


def test_a_profile_of_fewer_ranks_than_needed_does_not_count(tmp_path: Path) -> None:
    stored(tmp_path, encode(profile(measured=2000.0, ranks=1)), "few.json")
    assert current_profile(tmp_path, HERE, ranks=2)[0] is None
    stored(tmp_path, encode(profile(measured=1000.0, ranks=2)), "enough.json")
    found, _ = current_profile(tmp_path, HERE, ranks=2)
    assert found is not None
    assert found.measured == 1000.0


def test_without_a_valid_profile_the_line_says_why_each_was_refused(tmp_path: Path) -> None:
    assert current_profile(tmp_path, HERE) == (
        None,
        f"no valid machine profile in {tmp_path / 'machines'}: calibrate makes one",
    )
    stored(tmp_path, encode(profile())[:-100], "cut.json")
    stored(tmp_path, encode(profile(fingerprint=msgspec.structs.replace(HERE, node="other"))), "other.json")
    found, why = current_profile(tmp_path, HERE)
    assert found is None
    assert "cut.json: damaged machine profile" in why
    assert "other.json: a machine profile of another machine" in why
    assert "\n" not in why


def test_the_fingerprint_is_the_same_whatever_the_suite_s_commit_and_the_memory_of_a_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = fingerprint("cpu")
    monkeypatch.setattr("suite.machine.fingerprint.suite_version", lambda: "another")
    assert fingerprint("cpu") == first != fingerprint("cuda")
    hashes = set()
    for memory in ("16383900 kB", "16383012 kB", "8191000 kB"):
        monkeypatch.setattr("suite.machine.fingerprint.hardware", lambda memory=memory: {"memory": memory})
        hashes.add(fingerprint("cpu").hash)
    assert len(hashes) == 2


def test_a_subject_is_answered_by_its_own_table_at_that_many_ranks() -> None:
    measured: Profile = profile()
    alone = Subject(operation="product", variant="TN")
    assert measured.seconds(alone, 16, 16, 16) == pytest.approx(2e-9 * 16**3)
    together = msgspec.structs.replace(alone, ranks=2)
    assert measured.seconds(together, 16, 16, 16) == pytest.approx(4e-9 * 16**3)
    all_reduce = Subject(operation="all_reduce", ranks=2)
    assert measured.seconds(all_reduce, 1e6) == pytest.approx(2e-3)
    line = measured.line(all_reduce)
    assert line.fixed_seconds + 5e5 * line.seconds_per_unit == pytest.approx(1.5e-3)


def test_the_achievable_rates_are_the_best_product_and_the_memory_beyond_the_caches() -> None:
    own = profile()
    assert own.achievable_flop_per_second("fp32") == pytest.approx(1e9)
    assert own.achievable_flop_per_second("fp32", ranks=2) == pytest.approx(5e8)
    assert own.memory_bytes_per_second() == pytest.approx(5e9)
    with pytest.raises(InputError, match="no measurement of product NN bf16"):
        own.achievable_flop_per_second("bf16")
    square = Subject(operation="square_product", variant="NT", ranks=2)  # large ones decide where they were timed
    timed = fitted(square, "flop", [1e9, 1e10], [timing(1e9 / 4e11), timing(1e10 / 5e11)])
    known = msgspec.structs.replace(own, lines=[*own.lines, timed])
    assert known.achievable_flop_per_second("fp32", ranks=2) == pytest.approx(5e11)
    assert known.achievable_flop_per_second("fp32") == pytest.approx(5e11)  # of the next larger number of ranks


def test_what_was_not_measured_is_refused_by_name_and_fewer_ranks_take_the_next_larger_number() -> None:
    one_of_two = Subject(operation="all_reduce", ranks=1)
    assert profile().seconds(one_of_two, 1e6) == pytest.approx(2e-3)
    for subject, line in (
        (Subject(operation="product", variant="NT", dtype="bf16"), "no measurement of product NT bf16 1 ranks"),
        (Subject(operation="product", variant="NT", ranks=4), "product NT fp32 4 ranks, only with 1, 2 ranks"),
    ):
        with pytest.raises(InputError, match=line):
            profile().seconds(subject, 8, 8, 8)
