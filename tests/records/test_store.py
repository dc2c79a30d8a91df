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
from suite.records.record import RankOutcome, encode, status_without_end
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


@pytest.mark.parametrize("links", [True, False])
def test_a_half_is_never_overwritten_with_links_or_without(links, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    directory = store.records_directory(tmp_path, "small")
    opened = store.Opened(directory, first := begin())
    opened.close(end(first.id))
    before = contents(directory)
    assert sorted(before) == [f"{first.id}.begin.json", f"{first.id}.end.json"]
    with pytest.raises(store.StoreFullError, match="File exists"):
        store.Opened(directory, msgspec.structs.replace(first, started=0.0))
    with pytest.raises(store.StoreFullError, match="File exists"):
        opened.close(end(first.id, message="again"))
    assert contents(directory) == before


def test_identities_differ_among_writers_of_one_second():
    assert len({store.new_identity() for _ in range(1000)}) == 1000


def test_the_status_of_a_launch_without_an_end_is_that_of_its_launcher():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    here, own = node_identity(), begin().launcher
    cases = {
        "running": (here, {}),
        "crashed": (here, {"pid": child.pid}),
        "crashed, its start is not known": (here, {"pid": child.pid, "started_ticks": -1}),
        "crashed, another process has its number": (here, {"started_ticks": own.started_ticks - 1}),
        "crashed, another boot": (here, {"boot": "~"}),
        "crashed, an earlier boot": (here, {"boot": ""}),
        "unknown": ("00000000", {}),
    }
    for expected, (node, changes) in cases.items():
        launcher = msgspec.structs.replace(own, **changes)
        assert status_without_end(node, launcher) == expected.partition(",")[0], expected


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


def test_a_later_minor_schema_is_read(tmp_path):
    """It has more fields, in the job's own records too."""
    first = recorded(tmp_path)
    for half in ("begin", "end"):
        path = tmp_path / "records" / "small" / f"{first.id}.{half}.json"
        facts = msgspec.json.decode(path.read_bytes()) | {"schema": "1.9", "new": 1}
        if half == "begin":
            for part in (facts["job"], *(facts["job"][name] for name in ("architecture", "recipe", "layout"))):
                part["new"] = 1
        path.write_bytes(msgspec.json.encode(facts))
    good, bad = stored_records(tmp_path, "small")
    assert ([record.begin.job for record in good], bad) == ([first.job], [])
    briefly, bad = launches(tmp_path)
    assert ([launch.id for launch in briefly], bad) == ([first.id], [])


def test_a_record_is_readable_by_all_and_writable_by_its_owner(tmp_path):
    usual = os.umask(0)
    try:
        store.write_new(tmp_path / "one.json", b"{}")
    finally:
        os.umask(usual)
    assert stat.S_IMODE((tmp_path / "one.json").stat().st_mode) == 0o644
