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
from suite.machine.fingerprint import Fingerprint, fingerprint
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


def test_a_profile_survives_its_file_unchanged() -> None:
    assert decode(encode(profile()), "file") == profile()


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
                assert again["step"][name].pop(key) == defaults[key]
    assert written | {"partial": False} == recorded | {"partial": False}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_profile_is_refused_in_one_line(share: float) -> None:
    data = encode(profile()).rstrip()
    with pytest.raises(InputError, match="^file: damaged machine profile, truncated perhaps: .+$"):
        decode(data[: int(share * len(data))], "file")


@pytest.mark.parametrize(
    ("what", "edit"),
    [
        ("a time", lambda content: content["tables"][0]["timings"][0].__setitem__(0, 1e-9)),
        ("a fit", lambda content: content["lines"][0].__setitem__("fixed_seconds", 0.0)),
        ("the node", lambda content: content["fingerprint"].__setitem__("node", "ffffffff")),
        ("a new key", lambda content: content.__setitem__("note", "mine")),
        ("everything", lambda content: content.clear()),
    ],
)
def test_a_profile_edited_by_hand_is_refused_in_one_line(what: str, edit: object) -> None:
    whole = json.loads(encode(profile()))
    edit(whole["profile"])  # type: ignore[operator]  # a function of the content
    with pytest.raises(InputError, match="^file: the machine profile was changed after it was measured") as refusal:
        decode(json.dumps(whole).encode(), "file")
    assert "\n" not in str(refusal.value), what


def test_a_profile_in_other_white_space_is_the_same_profile() -> None:
    assert decode(json.dumps(json.loads(encode(profile())), indent=3).encode(), "file") == profile()


@pytest.mark.parametrize("schema", ["11.0", "9.1", "", "x"])
def test_an_unknown_major_version_is_refused_and_a_minor_one_read(schema: str) -> None:
    whole = json.loads(encode(profile()))
    whole["schema"] = schema
    with pytest.raises(
        InputError, match=r"^file: unknown schema version of a machine profile; got .*, allowed: 10\.x$"
    ):
        decode(json.dumps(whole).encode(), "file")
    whole["schema"] = "10.7"
    assert decode(json.dumps(whole).encode(), "file") == profile()


@pytest.mark.parametrize("data", [b"[]", b"3", b"null", b'"text"'])
def test_json_that_is_no_profile_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="^file: not a machine profile"):
        decode(data, "file")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"node": "99999999"}, "a machine profile of another machine; got 99999999, allowed: 0123abcd"),
        ({"device": "cuda"}, "a stale machine profile: device has changed; got cuda, allowed: cpu"),
        ({"hardware": {"cpu": "A", "cores": "4"}}, "a stale machine profile: cores has changed; got 4, allowed: 2"),
        ({"software": {"torch": "2.12.1"}}, "a stale machine profile: torch has changed; got 2.12.1, allowed: 2.13.0"),
        ({"software": {}}, "a stale machine profile: torch has changed; got nothing, allowed: 2.13.0"),
    ],
)
def test_a_profile_of_another_machine_or_of_other_software_is_refused_by_what_differs(
    changes: dict[str, object], line: str
) -> None:
    other = msgspec.structs.replace(HERE, **changes)
    with pytest.raises(InputError) as refusal:
        check_holds(profile(fingerprint=other), HERE, "file")
    assert str(refusal.value) == f"file: {line}"
    assert (other.hash == HERE.hash) == (changes.keys() == {"node"})


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


def test_the_fingerprint_is_the_same_whatever_the_suite_s_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint("cpu")
    monkeypatch.setattr("suite.machine.fingerprint.suite_version", lambda: "another")
    assert fingerprint("cpu") == first != fingerprint("cuda")
    assert isinstance(first, Fingerprint)


def test_a_few_kilobytes_less_of_memory_after_a_reboot_are_the_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_large_square_products_tell_the_achievable_rate_where_they_were_timed() -> None:
    square = Subject(operation="square_product", variant="NT", ranks=2)
    timed = fitted(square, "flop", [1e9, 1e10], [timing(1e9 / 4e11), timing(1e10 / 5e11)])
    own = profile()
    known = msgspec.structs.replace(own, lines=[*own.lines, timed])
    assert known.achievable_flop_per_second("fp32", ranks=2) == pytest.approx(5e11)
    assert known.achievable_flop_per_second("fp32") == pytest.approx(5e11)  # of the next larger number of ranks


def test_the_achievable_rates_are_the_best_product_and_the_memory_beyond_the_caches() -> None:
    assert profile().achievable_flop_per_second("fp32") == pytest.approx(1e9)
    assert profile().achievable_flop_per_second("fp32", ranks=2) == pytest.approx(5e8)
    assert profile().memory_bytes_per_second() == pytest.approx(5e9)
    with pytest.raises(InputError, match="no measurement of product NN bf16"):
        profile().achievable_flop_per_second("bf16")


def test_fewer_ranks_than_any_measured_take_the_next_larger_number() -> None:
    one_of_two = Subject(operation="all_reduce", ranks=1)
    assert profile().seconds(one_of_two, 1e6) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("subject", "line"),
    [
        (Subject(operation="product", variant="NT", dtype="bf16"), "no measurement of product NT bf16 1 ranks"),
        (Subject(operation="product", variant="NT", ranks=4), "product NT fp32 4 ranks, only with 1, 2 ranks"),
    ],
)
def test_what_was_not_measured_is_refused_by_name(subject: Subject, line: str) -> None:
    with pytest.raises(InputError, match=line):
        profile().seconds(subject, 8, 8, 8)
