"""Records: two halves, never overwritten, never lost; a damaged one is named and hides no other."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from contextlib import contextmanager

import msgspec
import pytest

from suite.job.events import Step, StepKind
from suite.job.pipeline_passes import MOST_PASSES, MeasuredPass, PassKind, PipelineTimes
from suite.machine.fingerprint import node_identity
from suite.records import store
from suite.records.index import launches
from suite.records.record import SCHEMA, End, Launcher, RankOutcome, decode, encode, status_without_end
from tests.support.record_halves import begin, contents, end, stored_records


def recorded(results, **changes):
    """A whole record below `results`; returns its first half."""
    first = begin(**changes)
    store.Opened(store.records_directory(results, "small"), first).close(end(first.id))
    return first


@contextmanager
def tmpfs(directory, options):
    """A small file system of its own at `directory`."""
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(directory)], capture_output=True)
    if done.returncode:
        pytest.skip(f"needs permission to mount a small tmpfs: {done.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(path):
    """Take all the room that is left on the file system of `path`."""
    with path.open("ab", buffering=0) as file:
        for size in (65536, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_record_reads_back_as_it_was_written(tmp_path):
    first = recorded(tmp_path)
    good, bad = stored_records(tmp_path, "small")
    assert bad == []
    assert [record.begin for record in good] == [first]
    assert (good[0].end.id, good[0].status) == (first.id, "ok")
    names = sorted(path.name for path in (tmp_path / "records" / "small").iterdir())
    assert names == [f"{first.id}.begin.json", f"{first.id}.end.json"]


def test_records_are_read_oldest_first(tmp_path):
    ids = [f"20260101T00000{n}Z__node__00000000" for n in (3, 1, 2)]
    for identity in ids:
        recorded(tmp_path, id=identity)
    assert [record.begin.id for record in stored_records(tmp_path, "small")[0]] == sorted(ids)


def test_a_begin_is_never_overwritten(tmp_path):
    first = recorded(tmp_path)
    directory = tmp_path / "records" / "small"
    before = contents(directory)
    with pytest.raises(store.StoreFullError, match="File exists"):
        store.Opened(directory, msgspec.structs.replace(first, started=0.0))
    assert contents(directory) == before


def test_an_end_is_never_overwritten(tmp_path):
    directory = store.records_directory(tmp_path, "small")
    opened = store.Opened(directory, first := begin())
    opened.close(end(first.id))
    before = contents(directory)
    with pytest.raises(store.StoreFullError, match="File exists"):
        opened.close(end(first.id, message="again"))
    assert contents(directory) == before


def test_identities_differ_among_writers_of_one_second():
    assert len({store.new_identity() for _ in range(1000)}) == 1000


def test_a_record_without_end_is_running_while_its_launcher_lives(tmp_path):
    store.Opened(store.records_directory(tmp_path, "small"), begin())
    assert [record.status for record in stored_records(tmp_path, "small")[0]] == ["running"]


def test_a_record_without_end_is_crashed_once_its_launcher_is_gone(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    first = begin()
    gone = msgspec.structs.replace(first.launcher, pid=child.pid)
    child.wait()
    store.Opened(store.records_directory(tmp_path, "small"), msgspec.structs.replace(first, launcher=gone))
    assert [record.status for record in stored_records(tmp_path, "small")[0]] == ["crashed"]


def test_room_of_a_killed_launcher_is_freed_by_the_next_launch_and_no_other(tmp_path):
    directory = store.records_directory(tmp_path, "small")
    killed, living, elsewhere = begin(), begin(), msgspec.structs.replace(begin(), node="00000000")
    gone = msgspec.structs.replace(killed.launcher, started_ticks=1)
    for half in (elsewhere, living, msgspec.structs.replace(killed, launcher=gone)):
        store.Opened(directory, half)
    assert (directory / f".{killed.id}.reserve").exists()
    store.Opened(directory, begin())
    assert not (directory / f".{killed.id}.reserve").exists()
    assert (directory / f".{living.id}.reserve").exists()
    assert (directory / f".{elsewhere.id}.reserve").exists()


@pytest.mark.parametrize("node", ["00000000", "zzzzzzzz"])
def test_a_record_of_another_machine_without_end_is_unknown(node, tmp_path):
    elsewhere = msgspec.structs.replace(begin(), node=node)
    store.Opened(store.records_directory(tmp_path, "small"), elsewhere)
    assert [record.status for record in stored_records(tmp_path, "small")[0]] == ["unknown"]


@pytest.mark.parametrize("field", ["started_ticks", "boot"])
def test_another_process_with_the_launchers_number_does_not_make_a_record_running(field, tmp_path):
    first = begin()
    other = {"started_ticks": first.launcher.started_ticks - 1, "boot": "another boot"}[field]
    launcher = msgspec.structs.replace(first.launcher, **{field: other})
    assert isinstance(launcher, Launcher)
    store.Opened(store.records_directory(tmp_path, "small"), msgspec.structs.replace(first, launcher=launcher))
    assert [record.status for record in stored_records(tmp_path, "small")[0]] == ["crashed"]


def test_a_launcher_whose_start_is_not_known_and_that_is_gone_has_crashed():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    gone = msgspec.structs.replace(begin().launcher, pid=child.pid, started_ticks=-1)  # as of a process that is gone
    assert status_without_end(node_identity(), gone) == "crashed"


@pytest.mark.parametrize("half", ["begin", "end"])
@pytest.mark.parametrize("damage", ["empty", "cut", "other-json", "field-missing"])
def test_a_damaged_half_is_named_and_the_other_records_are_read(half, damage, tmp_path):
    kept, hurt = recorded(tmp_path), recorded(tmp_path)
    path = tmp_path / "records" / "small" / f"{hurt.id}.{half}.json"
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": data[: len(data) // 2],
            "other-json": b"[1, 2]",
            "field-missing": data.replace(b'"id"', b'"di"', 1),
        }[damage]
    )
    good, bad = stored_records(tmp_path, "small")
    assert [record.begin.id for record in good] == [kept.id]
    assert [str(error).startswith(f"{path}: ") for error in bad] == [True]
    assert "damaged record" in str(bad[0])


@pytest.mark.parametrize("schema", ["2.0", "0.9", "", "10.0"])
@pytest.mark.parametrize("half", ["begin", "end"])
def test_an_unknown_major_schema_is_refused(half, schema, tmp_path):
    first = recorded(tmp_path)
    path = tmp_path / "records" / "small" / f"{first.id}.{half}.json"
    path.write_bytes(path.read_bytes().replace(f'"schema": "{SCHEMA}"'.encode(), f'"schema": "{schema}"'.encode(), 1))
    good, bad = stored_records(tmp_path, "small")
    assert good == []
    assert [str(error) for error in bad] == [f"{path}: unknown schema version; got '{schema}', allowed: 1.x"]


def test_a_later_minor_schema_with_more_fields_is_read():
    first = end("one", schema="1.7")
    data = encode(first).replace(b'"message"', b'"temperature": 451,\n "message"', 1)
    assert decode(data, End, "here") == first


@pytest.mark.parametrize(("steps", "failure"), [(3000, 0), (1, 65536)])
def test_the_room_that_is_kept_holds_the_end_of_any_run(steps, failure, tmp_path):
    """Steps of every rank with the longest numbers that occur, and 64 KiB of log and of each traceback."""
    ranks = 2
    directory = store.records_directory(tmp_path, "small")
    first = begin(steps=steps)
    store.Opened(directory, first)
    (reserve,) = directory.glob(".*.reserve")
    step = [
        Step(n, StepKind.WARM_UP, 12.345678901234567, 0.12345678901234567, 1700000000.1234567) for n in range(steps)
    ]
    last = {"last": f"step {steps} done", "failure": "x" * failure}
    outcomes = [RankOutcome(rank=n, steps=step, environment={}, **last) for n in range(ranks)]
    assert len(encode(end(first.id, ranks=outcomes, log_tail="x" * 65536))) <= reserve.stat().st_size


def test_the_room_that_is_kept_holds_the_passes_of_a_pipeline(tmp_path):
    first = begin(steps=1)
    layout = msgspec.structs.replace(first.job.layout, pipeline_stages=8, data_parallel=1, micro_batch=1)
    recipe = msgspec.structs.replace(first.job.recipe, global_batch=MOST_PASSES)
    first = msgspec.structs.replace(first, job=msgspec.structs.replace(first.job, layout=layout, recipe=recipe))
    directory = store.records_directory(tmp_path, "small")
    store.Opened(directory, first)
    (reserve,) = directory.glob(".*.reserve")
    passes = [MeasuredPass(PassKind.FORWARD, 0, number, 10**8, 10**8 + 1) for number in range(MOST_PASSES)]
    times = PipelineTimes(medians=[], step=6, passes=passes)
    ranks = [RankOutcome(rank=rank, steps=[], last="finished", pipeline_times=times) for rank in range(8)]
    assert len(encode(end(first.id, ranks=ranks, log_tail="x" * 65536))) <= reserve.stat().st_size


GRAB = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("grabbing", flush=True)
while True:
    try:
        os.write(file, bytes(4096))
    except OSError:
        pass
"""


def test_an_end_finds_its_room_while_another_writer_takes_all_that_becomes_free(tmp_path):
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        directory = store.records_directory(disk, "small")
        opened = store.Opened(directory, first := begin())
        fill(disk / "filler")
        grabber = subprocess.Popen([sys.executable, "-c", GRAB, str(disk / "filler")], stdout=subprocess.PIPE)
        grabber.stdout.readline()
        try:
            opened.close(end(first.id, log_tail="x" * 100_000))
        finally:
            grabber.kill()
            grabber.communicate()
        (record,) = stored_records(disk, "small")[0]
        assert (record.status, len(record.end.log_tail)) == ("ok", 100_000)
        assert [path for path in directory.iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_refuses_a_record_and_keeps_nothing_of_it(tmp_path):
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        recorded(disk)
        directory = disk / "records" / "small"
        fill(disk / "filler")
        before = contents(directory)
        with pytest.raises(store.StoreFullError, match="No space left on device"):
            store.Opened(directory, begin())
        assert contents(directory) == before


def test_a_disk_without_room_for_a_directory_is_full_rather_than_bad_input(tmp_path):
    with tmpfs(tmp_path / "disk", "nr_inodes=2") as disk, pytest.raises(store.StoreFullError, match="No space left"):
        store.records_directory(disk, "small")


def test_an_end_that_does_not_fit_leaves_no_part_of_itself(tmp_path):
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        directory = store.records_directory(disk, "small")
        opened = store.Opened(directory, first := begin())
        fill(disk / "filler")
        with pytest.raises(store.StoreFullError, match="cannot write the end of a record: No space left on device"):
            opened.close(end(first.id, log_tail="x" * 500_000))
        assert [path.name for path in directory.iterdir()] == [f"{first.id}.begin.json"]


def test_a_file_system_without_links_takes_records_and_overwrites_none(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    first = recorded(tmp_path)
    directory = tmp_path / "records" / "small"
    before = contents(directory)
    assert sorted(before) == [f"{first.id}.begin.json", f"{first.id}.end.json"]
    with pytest.raises(store.StoreFullError, match="File exists"):
        store.Opened(directory, msgspec.structs.replace(first, started=0.0))
    assert contents(directory) == before
    assert [record.status for record in stored_records(tmp_path, "small")[0]] == ["ok"]


@pytest.mark.parametrize(("number", "kept"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_directory_that_cannot_be_flushed_takes_records_but_one_that_fails_to_does_not(
    number, kept, tmp_path, monkeypatch
):
    flush = os.fsync

    def of_files_alone(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        flush(file)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    if kept:
        first = recorded(tmp_path)
        assert [record.begin for record in stored_records(tmp_path, "small")[0]] == [first]
    else:
        with pytest.raises(store.StoreFullError, match="cannot write a record: Input/output error"):
            recorded(tmp_path)


def test_a_link_whose_answer_was_lost_on_the_way_is_no_error(tmp_path, monkeypatch):
    """A network file system's client asks again, and the server says that the file is there."""
    link = os.link

    def asked_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    first = recorded(tmp_path)
    assert [record.begin for record in stored_records(tmp_path, "small")[0]] == [first]


def test_what_killed_writers_left_goes_when_it_is_a_day_old(tmp_path):
    directory = store.records_directory(tmp_path, "small")
    names = [f".{begin().id}.reserve", f".{begin().id}.begin.json.0123abcd", ".0123456789abcdef", ".launches"]
    names.append(".0123abcd..launches")
    kept = [".nfs0000000000000001"]
    for name in names + kept:
        (directory / name).write_bytes(b"x")
    store.Opened(directory, first := begin()).close(end(first.id))
    assert all((directory / name).exists() for name in names)
    for name in names + kept:
        os.utime(directory / name, (time.time() - 90_000,) * 2)
    store.Opened(directory, first := begin()).close(end(first.id))
    assert sorted(path.name for path in directory.iterdir() if path.name.startswith(".")) == kept


def test_room_goes_where_a_launcher_was_killed_after_its_end_was_named(tmp_path):
    first = recorded(tmp_path)
    directory = tmp_path / "records" / "small"
    os.link(directory / f"{first.id}.end.json", directory / f".{first.id}.reserve")
    store.Opened(directory, last := begin()).close(end(last.id))
    assert not (directory / f".{first.id}.reserve").exists()
    assert len(stored_records(tmp_path, "small")[0]) == 2


@pytest.mark.parametrize("minor", [0, 1, 9])
def test_earlier_and_later_minor_schemas_are_read(minor, tmp_path):
    """1.0 and 1.1 lack fields that have defaults now; a later one has more, in the job's own records too."""
    first = recorded(tmp_path)
    for half in ("begin", "end"):
        path = tmp_path / "records" / "small" / f"{first.id}.{half}.json"
        facts = msgspec.json.decode(path.read_bytes()) | {"schema": f"1.{minor}"}
        if minor < 2 and half == "begin":
            del facts["job"]["averaging"], facts["job"]["exact_steps"]
        if minor < 1:
            for name in ("trace", "kernels") if half == "begin" else ("predicted", "profile", "others_share"):
                (facts["job"] if half == "begin" else facts).pop(name)
        if minor > 2 and half == "begin":
            for name in ("architecture", "recipe", "layout"):
                facts["job"][name]["new"] = 1
            facts["job"]["new"] = facts["new"] = 1
        path.write_bytes(msgspec.json.encode(facts))
    good, bad = stored_records(tmp_path, "small")
    assert bad == []
    assert good[0].begin.job == first.job
    briefly, bad = launches(tmp_path)
    assert [launch.id for launch in briefly] == [first.id]
    assert bad == []


def test_a_record_is_readable_by_all_and_writable_by_its_owner(tmp_path):
    usual = os.umask(0)
    try:
        store.write_new(tmp_path / "one.json", b"{}")
    finally:
        os.umask(usual)
    assert stat.S_IMODE((tmp_path / "one.json").stat().st_mode) == 0o644
