"""Files in the words of earlier versions say the same as those in today's, through every reader of their kind."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from suite.acceptance.battery_record import PhaseEvidence
from suite.fleet.battery_queries import FleetStore
from suite.fleet.battery_table import ingest
from suite.fleet.fleet_record import FleetEnd, kept
from suite.job.options import Documents, Texts, document_offsets
from suite.ladder import result as ladder_result
from suite.machine import profile
from suite.machine.fingerprint import checksum
from suite.paths import RECORDED, ROOT
from suite.records import store
from suite.records.battery import BatteryEnd, read_half
from suite.records.summary import launch_summary
from suite.stored_words import BATTERY, RECORD, in_todays_words

Words = dict[str, str]  # today's -> those of earlier versions
INDENTED, COMPACT = (", ", ": "), (",", ":")
NODE = "daa4ee97"
FLEET = (
    b'{"schema": "1.0", "id": "f", "finished": 0.0, "rows": [{"node": "n1", "verdict": "accepted",'
    b' "figures": {"8 bloom-mini, cpu_slowdown": {"value": 1.01}}}]}'
)


def store_of(path: Path) -> object:
    ingest(path.parent.parent, path.parent / "store")
    return FleetStore(path.parent / "store").over_time([NODE])


def profile_with_its_checksum(path: Path) -> profile.Profile:
    whole = json.loads(path.read_bytes())
    path.write_text(json.dumps(whole | {"checksum": checksum(whole["profile"])}))
    return profile.read(path)


def record(path: Path) -> object:
    """Both halves, whole and in short."""
    whole = store.read(path)
    short = launch_summary(str(path), str(store.end_of(path)))
    return whole.begin, whole.end, short


def ladder_file() -> bytes:
    """The recorded result, with a rung that is ablated and a top that failed."""
    (path,) = (RECORDED / "ladder").glob("*.json")
    recorded = ladder_result.read(path)
    rungs = [msgspec.structs.replace(rung, ablated=True) for rung in recorded.rungs]
    failed = {"speed/top without compile": "crashed"}
    return msgspec.json.encode(msgspec.structs.replace(recorded, rungs=rungs, leave_one_out_failed=failed))


def documents(path: Path) -> Documents:
    return document_offsets(Texts(tokenizer_file="", text_file="", documents_file=str(path)))


@pytest.mark.parametrize(
    ("files", "read", "words"),
    [
        (
            "machines/daa4ee97__97e2afe49d639f9f.json",
            profile_with_its_checksum,
            {'"cpu_speed":': '"pace":', '"reference_steps":': '"trials":', '"step":': '"trial":'},
        ),
        (
            "records/gpt2-mini-ladder/20261125T152817Z__daa4ee97__07a72f7e.*.json",
            record,
            {
                '"training_options": {': '"script": {',
                '"cpu_slowdown"': '"pace"',
                '"step_seconds_at_cpu_speed"': '"step_seconds_at_pace"',
            },
        ),
        (
            "acceptance/20261125T150404Z__daa4ee97__578e4099.bloom-mini_times.phase.json",
            lambda path: read_half(path, PhaseEvidence),
            {'"cpu_slowdown":': '"pace":', '"cpu_slowdowns":': '"paces":'},
        ),
        (
            "acceptance/20261125T150404Z__daa4ee97__578e4099.end.json",
            lambda path: (read_half(path, BatteryEnd), store_of(path)),
            {'"compared_as":': '"siblings":', 'mini, cpu_slowdown"': 'mini, pace"'},
        ),
        (
            ladder_file(),
            ladder_result.read,
            {
                '"rungs":': '"heights":',
                '"track":': '"walk":',
                '"in_track":': '"in_walk":',
                '"ablated":': '"broken":',
                '"leave_one_out_failed":': '"twins_failed":',
                '"cpu_slowdown":': '"pace":',
            },
        ),
        (FLEET, lambda path: kept(path, FleetEnd), {'mini, cpu_slowdown"': 'mini, pace"'}),
        (
            b'{"byte_offsets": [0, 5], "token_offsets": [0, 2]}',
            documents,
            {'"byte_offsets"': '"byte_places"', '"token_offsets"': '"token_places"'},
        ),
    ],
)
def test_a_file_in_earlier_words_says_the_same(
    files: str | bytes, read: Callable[[Path], object], words: Words, tmp_path: Path
) -> None:
    if isinstance(files, bytes):
        contents = {"a/file": json.loads(files)}
    else:
        contents = {str(path.relative_to(RECORDED)): json.loads(path.read_bytes()) for path in RECORDED.glob(files)}
    whole = json.dumps([*contents.values()])
    assert [today for today in words if today not in whole] == []

    def said(changed: Words, separators: tuple[str, str]) -> object:
        """The reader's answer for the files in these words; their path is always the same, as some readers say it."""
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, content in contents.items():
            text = json.dumps(content)
            for today, earlier in changed.items():
                text = text.replace(today, earlier)
            path = place / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(json.dumps(json.loads(text), separators=separators))
        here = tmp_path / "here"
        here.unlink(missing_ok=True)
        here.symlink_to(place)
        return read(here / min(contents))

    today = said({}, INDENTED)
    assert said(words, INDENTED) == today
    assert said(words, COMPACT) == today


def test_files_as_earlier_versions_wrote_them_say_what_the_migrated_ones_do() -> None:
    earlier = ROOT / "tests" / "earlier_words"

    def said(place: Path) -> list[object]:
        (begin,) = (place / "records").glob("*/20261125T152817Z__daa4ee97__07a72f7e.begin.json")
        whole = store.read(begin)
        battery = read_half(place / "acceptance" / "20261125T150404Z__daa4ee97__578e4099.end.json", BatteryEnd)
        halves = (whole.begin, whole.end, battery)
        today = [msgspec.structs.replace(half, schema="") for half in halves if half is not None]
        return [*today, profile.read(place / "machines" / "daa4ee97__97e2afe49d639f9f.json")]

    assert said(earlier) == said(RECORDED)
    texts = b"".join(path.read_bytes() for path in earlier.rglob("*.json"))
    assert [word for word in ("pace", "trials", "siblings", "script") if f'"{word}"'.encode() not in texts] == []


def test_words_of_users_stay_as_they_are() -> None:
    record = b'{"run": "pace", "message": "\\"pace\\": late", "corpus": "script", "quantity": "pace"}'
    assert in_todays_words(record, RECORD) == record.replace(b'"quantity": "pace"', b'"quantity": "cpu_slowdown"')
    battery = b'{"evidence": "siblings, pace", "siblings": "bloom-mini, pace", "losses": {"8 glm-mini, pace": 1}}'
    today = battery.replace(b'"siblings": "bloom-mini, pace"', b'"compared_as": "bloom-mini, cpu_slowdown"')
    assert in_todays_words(battery, BATTERY) == today.replace(b"glm-mini, pace", b"glm-mini, cpu_slowdown")
