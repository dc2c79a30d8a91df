"""The store of batteries: what is new is taken in once, what is damaged is named, each question finds its records."""

from __future__ import annotations

import io
import json
import os
import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from benchmarks.fleet_records import FIRST, INTERVAL, write_records
from reference_runs.errors import InputError
from suite.__main__ import main
from suite.fleet import battery_store, battery_table
from suite.fleet.battery_queries import FleetSelection, FleetStore, NodeVerdict
from suite.fleet.battery_store import BATTERIES, STORE, parts
from suite.fleet.battery_table import ingest
from suite.fleet.fleet_record import SCHEMA, FleetEnd, FleetRow
from suite.fleet.prometheus import metrics, write_metrics
from suite.fleet.verdicts import ACCEPTED, BAD, FAILED, NO_ANSWER, NOT_RUN, REJECTED, UNDECIDED
from suite.metrics.modified_z import LIMIT, modified_z_among
from suite.paths import ROOT
from suite.records.battery import BatteryEnd, Decision, good_until_and_bad_since, read_half, worst_of

pytest.importorskip("duckdb")
NODES, EACH = 64, 2
NOTHING = FleetSelection()


@pytest.fixture
def results(tmp_path):
    write_records(tmp_path, nodes=NODES, batteries=EACH, seed=1)
    return tmp_path


def store_of(results):
    return FleetStore(results / STORE)


def end_of(results, node, number):
    return sorted((results / "acceptance").glob(f"*__{node:08x}__*.end.json"))[number]


def changed(path, **changes):
    path.write_bytes(json.dumps(json.loads(path.read_bytes()) | changes).encode())


def failed(results, node, number, part):
    """The battery's first finding fails in a part."""
    path = end_of(results, node, number)
    findings = json.loads(path.read_bytes())["findings"]
    findings[0] |= {"verdict": "FAIL", "part": part, "evidence": "seen"}
    changed(path, findings=findings, decision="rejected")


def later_fleet(results, rows):
    end = FleetEnd(schema=SCHEMA, id="later", finished=FIRST + 100 * INTERVAL, rows=rows)
    path = results / "fleet" / "later" / "end.json"
    path.parent.mkdir()
    path.write_bytes(msgspec.json.encode(end))


def test_only_new_records_are_taken_in(results):
    assert ingest(results, results / STORE) == (NODES * EACH + 1, [])
    files = sorted((results / STORE).iterdir())
    assert ingest(results, results / STORE) == (0, [])
    assert sorted((results / STORE).iterdir()) == files
    end = end_of(results, 3, 1)
    again = json.loads(end.read_bytes()) | {"id": "20300101T000000Z__00000003__ffffffff"}
    (end.parent / f"{again['id']}.end.json").write_text(json.dumps(again))
    assert ingest(results, results / STORE) == (1, [])
    assert store_of(results).batteries() == NODES * EACH + 1


def test_a_damaged_record_is_named_and_left_out_until_it_is_whole(results):
    path = end_of(results, 5, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    changed(end_of(results, 6, 0), schema="7.0")
    found = ingest(results, results / STORE)
    assert found.new == NODES * EACH + 1 - 2
    assert len(found.left_out) == 2
    assert any(str(path) in words and "damaged" in words for words in found.left_out)
    assert any("'7.0'" in words for words in found.left_out)
    path.write_bytes(whole)
    assert ingest(results, results / STORE).new == 1


def test_a_history_reads_the_files_that_have_the_node_and_no_others(results, monkeypatch):
    monkeypatch.setattr(battery_table, "PART_RECORDS", NODES * EACH // 4)
    monkeypatch.setattr(battery_table, "usable_cores", lambda: 1)
    ingest(results, results / STORE)
    known, every = store_of(results), parts(results / STORE, BATTERIES)
    assert len(every) == 4
    for node in (0, 15, 16, NODES - 1):
        name = f"{node:08x}"
        (own,) = parts(results / STORE, BATTERIES, [name])
        expected = known.history(FleetSelection(node=name))
        assert len(expected) >= EACH
        Path(own).rename(results / "hidden")
        assert len(store_of(results).history(FleetSelection(node=name))) == len(expected) - EACH
        (results / "hidden").rename(own)
    assert parts(results / STORE, BATTERIES, ["n1", "ffffffff"]) == []
    Path(every[0]).rename(results / STORE / "batteries-0123456789abcdef.parquet")  # as they were called before
    assert len(parts(results / STORE, BATTERIES, ["ffffffff"])) == 1


def test_writers_at_the_same_time_and_several_processes_count_nothing_twice(results, monkeypatch):
    monkeypatch.setattr(battery_table, "PART_RECORDS", 100)
    monkeypatch.setattr(battery_table, "usable_cores", lambda: 2)
    assert ingest(results, results / "alone").new == NODES * EACH + 1
    assert len(parts(results / "alone", BATTERIES)) == 2
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda _: ingest(results, results / STORE), range(3))]
    assert all(not one.left_out for one in found)
    store = store_of(results)
    assert store.batteries() == FleetStore(results / "alone").batteries() == NODES * EACH
    assert len(store.nodes(NOTHING)) == NODES
    assert len([said for said in store.history(FleetSelection(node="n7")) if said.time < FIRST + EACH * INTERVAL]) == 2


def test_a_writer_that_fails_leaves_no_half_file(results, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(battery_table, "_parquet", fails)
    monkeypatch.setattr(battery_table, "usable_cores", lambda: 1)
    with pytest.raises(InputError, match="No space left"):
        ingest(results, results / STORE)
    assert list((results / STORE).iterdir()) == []


def test_verdicts_by_node_rack_part_and_time(results):
    (results / "fleet" / "made-up" / "end.json").rename(results / "made-up.json")
    failed(results, 40, 0, "GPU 3")
    failed(results, 40, 1, "GPU 3")
    failed(results, 41, 0, "memory")
    rows = msgspec.json.decode((results / "made-up.json").read_bytes(), type=FleetEnd).rows
    rows = [
        row if row.node != "n40" else msgspec.structs.replace(row, verdict="rejected", part="GPU 3") for row in rows
    ]
    lost = FleetRow(node="n2", verdict="no answer", part="node", evidence="silent")
    idle = FleetRow(node="n3", verdict="not run", evidence="down")
    later_fleet(results, [*(row for row in rows if row.node not in ("n2", "n3")), lost, idle])
    (results / "fleet" / "made-up" / "end.json").write_bytes((results / "made-up.json").read_bytes())
    ingest(results, results / STORE)
    store = store_of(results)
    by_name = {node.name: node for node in store.nodes(NOTHING)}
    assert len(by_name) == NODES
    assert {name for name, node in by_name.items() if node.verdict != "accepted"} == {"n2", "n40"}
    assert by_name["n2"].verdict == "no answer"
    assert by_name["n2"].node == "00000002"
    assert by_name["n3"].verdict == "accepted"
    assert {node.rack for node in by_name.values()} == {"rack0", "rack1"}
    assert {node.name for node in store.nodes(FleetSelection(rack="rack1"))} == {f"n{node}" for node in range(32, 64)}
    assert [node.name for node in store.nodes(FleetSelection(part="gpu"))] == ["n40"]
    since = FIRST + 99 * INTERVAL
    assert "n3" not in {node.name for node in store.nodes(FleetSelection(since=since))}
    assert by_name["n41"].since is None
    memory = store.history(FleetSelection(node="n41", part="memory"))
    assert [(said.verdict, said.time) for said in memory] == [("rejected", FIRST + 41)]
    by_hash = store.history(FleetSelection(node="00000029"))
    assert by_hash == store.history(FleetSelection(node="n41"))
    assert [said.time for said in by_hash] == sorted((said.time for said in by_hash), reverse=True)


def test_a_node_is_bad_since_when_the_one_rule_says_so(tmp_path):
    """The rule in SQL, over random verdicts, against that of `suite.records.battery`."""
    chance = random.Random(7)
    words = (ACCEPTED, REJECTED, FAILED, UNDECIDED, NO_ANSWER, NOT_RUN)
    history = {f"n{node}": [chance.choice(words) for _ in range(chance.randint(1, 7))] for node in range(60)}
    for time in range(7):
        rows = [FleetRow(node=node, verdict=said[time]) for node, said in history.items() if time < len(said)]
        directory = tmp_path / "fleet" / str(time)
        directory.mkdir(parents=True)
        end = FleetEnd(schema=SCHEMA, id=str(time), finished=FIRST + time, rows=rows)
        (directory / "end.json").write_bytes(msgspec.json.encode(end))
    ingest(tmp_path, tmp_path / STORE)
    expected = {}
    for node, verdicts in history.items():
        said = [(FIRST + time, verdict) for time, verdict in enumerate(verdicts) if verdict != NOT_RUN]
        good = {ACCEPTED: True} | dict.fromkeys(BAD, False)
        _, since = good_until_and_bad_since((time, good.get(verdict)) for time, verdict in said)
        if said:
            expected[node] = (said[-1][1], since if said[-1][1] in BAD else None)
    found = {node.name: (node.verdict, node.since) for node in store_of(tmp_path).nodes(NOTHING)}
    assert found == expected
    assert len({since for _, since in found.values()}) > 4


def test_outliers_are_those_of_the_one_modified_z(results):
    """The formula in SQL, over every figure of both kinds of groups, against `suite.metrics.modified_z`."""
    ingest(results, results / STORE)
    newest = {node: json.loads(end_of(results, node, EACH - 1).read_bytes())["findings"] for node in range(NODES)}
    groups = {("rack", f"rack{rack}"): range(32 * rack, 32 * rack + 32) for rack in (0, 1)}
    found = {(one.node, one.group, one.of, one.figure): one for one in store_of(results).outliers()}
    (firmware,) = {of for _, group, of, _ in found if group == "firmware"}
    expected = {}
    for (group, of), nodes in {**groups, ("firmware", firmware): range(NODES)}.items():
        values: dict[str, dict[int, float]] = {}
        for node in nodes:
            for finding in newest[node]:
                if finding.get("compared_as"):
                    name = f"{finding['check']} {finding['compared_as']}"
                    values.setdefault(name, {})[node] = finding["measured"]
        for figure, own in values.items():
            for node, value in own.items():
                z = modified_z_among(value, [*own.values()])
                if z is not None and abs(z) >= LIMIT:
                    expected[f"{node:08x}", group, of, figure] = (z, statistics.median(own.values()), len(own))
    assert found.keys() == expected.keys()
    assert {key[:3] for key in found} >= {("00000000", "rack", "rack0"), ("00000000", "firmware", firmware)}
    for key, (z, median, siblings) in expected.items():
        assert (found[key].z, found[key].median) == pytest.approx((z, median))
        assert found[key].siblings == siblings


def test_a_group_needs_three_nodes_beside_the_one_that_stands_out(tmp_path):
    for rates in ([1.1, 1.2, 9.0], [1.0, 1.1, 1.2, 9.0]):
        results = tmp_path / str(len(rates))
        write_records(results, nodes=len(rates), batteries=1, seed=1)
        for node, rate in enumerate(rates):
            finding = {"check": 1, "subject": "", "verdict": "PASS", "siblings": "x", "measured": rate}
            changed(end_of(results, node, 0), findings=[finding])
        ingest(results, results / STORE)
        found = [one.node for one in store_of(results).outliers() if one.group == "firmware"]
        assert found == ["00000003"] * (len(rates) > 3)


def test_the_store_says_of_a_battery_what_its_whole_record_says(results):
    path = end_of(results, 40, 0)
    said_of = {"hang": (1, "HANG", "rank 0"), "later": (9, "FAIL", "GPU 9"), "first": (2, "FAIL", "GPU 3")}
    facts = [{"check": check, "subject": "x", "verdict": word, "part": part} for check, word, part in said_of.values()]
    changed(path, findings=facts, decision="rejected")
    ingest(results, results / STORE)
    whole = read_half(path, BatteryEnd)
    (said,) = [said for said in store_of(results).history(FleetSelection(node="n40")) if said.battery == whole.id]
    worst = worst_of(whole.findings)
    assert (said.verdict, said.part, said.time) == (whole.decision, worst.part, whole.finished)
    assert said.part == "GPU 3"


def test_the_metrics_parse_with_the_official_parser(results, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    failed(results, 40, 1, 'GPU "3" \\ \n link')
    (results / "fleet" / "made-up" / "end.json").unlink()
    ingest(results, results / STORE)
    nodes = store_of(results).nodes(NOTHING)
    path = tmp_path / "suite.prom"
    path.write_text("old")
    write_metrics(path, nodes)
    assert [file.name for file in tmp_path.iterdir() if "suite.prom" in file.name] == ["suite.prom"]
    families = {family.name: family for family in parser.text_string_to_metric_families(path.read_text("utf-8"))}
    accepted = {sample.labels["node"]: sample.value for sample in families["suite_node_accepted"].samples}
    assert len(accepted) == NODES
    assert [node for node, value in accepted.items() if not value] == ["00000028"]
    said = {sample.labels["node"]: sample.labels for sample in families["suite_node_verdict_info"].samples}
    assert said["00000028"]["part"] == 'GPU "3" \\ \n link'
    assert said["00000028"]["verdict"] == "rejected"
    since = families["suite_node_bad_since_timestamp_seconds"].samples
    assert [sample.value for sample in since] == [FIRST + INTERVAL + 40]
    assert metrics([]).count("# TYPE") == 5


def test_the_metrics_parse_whatever_a_record_says_and_name_no_node_twice():
    """A node that was installed anew has another hash under its old name; the collector refuses what is said twice."""
    parser = pytest.importorskip("prometheus_client.parser")
    facts = {"rack": "", "evidence": "", "battery": ""}
    part = 'GPU\r3\x85\u2028\x1b[31m{}"\\'
    old = NodeVerdict(node="aa", name="n1", verdict="rejected", part="", time=1.0, since=1.0, **facts)
    new = NodeVerdict(node="bb", name="n1", verdict="accepted", part=part, time=2.0, **facts)
    for nodes in ((old, new), (new, old)):
        samples = [
            sample
            for family in parser.text_fd_to_metric_families(io.StringIO(metrics(nodes), newline=""))
            for sample in family.samples
        ]
        assert [sample.value for sample in samples if sample.name == "suite_node_accepted"] == [1.0]
        assert [sample.labels["part"] for sample in samples if "part" in sample.labels] == ['GPU 3   [31m{}"\\']
        assert not [sample for sample in samples if "since" in sample.name]


def test_a_damaged_store_is_refused_in_a_line_and_an_empty_directory_stays_empty(tmp_path, capsys):
    code, _, err = report(capsys, tmp_path)
    assert code == 3
    assert err == (
        f"no verdicts in {tmp_path / STORE}: `accept` and `fleet accept` write them with --results {tmp_path}\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert "without --stored" in report(capsys, tmp_path, "--stored")[2]
    (tmp_path / STORE).mkdir()
    (tmp_path / STORE / "batteries-1.parquet").write_bytes(b"junk")
    for options in ((), ("--stored",)):
        code, _, err = report(capsys, tmp_path, *options)
        assert code == 2
        assert "--store: cannot use the store" in err
        assert len(err.strip().splitlines()) == 1


def test_a_record_whose_name_is_no_text_is_left_out_and_the_others_are_shown(results, capsys):
    end_of(results, 1, 1).rename(os.fsdecode(bytes(results) + b"/acceptance/x__00000001__\xff.end.json"))
    code, out, _ = report(capsys, results, "--json")
    assert code == 2
    (words,) = json.loads(out)["left_out"]
    assert words.endswith("x__00000001__\\udcff.end.json: the name is no UTF-8")
    assert len(json.loads(out)["nodes"]) == NODES
    assert store_of(results).batteries() == NODES * EACH - 1


def report(capsys, *arguments):
    code = main(["fleet", "report", *map(str, arguments)])
    return (code, *capsys.readouterr())


def test_the_command_shows_the_table_names_what_is_damaged_and_ends_with_2(results, capsys):
    end_of(results, 5, 1).write_text("{")
    failed(results, 40, 1, "GPU 3")
    (results / "fleet" / "made-up" / "end.json").unlink()
    code, out, err = report(capsys, results)
    assert code == 2
    assert "64 nodes, 127 batteries: 63 accepted, 1 rejected" in out
    assert "GPU 3" in out
    assert len(err.strip().splitlines()) == 1
    assert "00000005" in err
    code, out, _ = report(capsys, results, "--stored", "--node", "00000028", "--json")
    assert code == 0
    assert [said["verdict"] for said in json.loads(out)["history"]] == ["rejected", "accepted"]


def test_wrong_questions_are_refused_in_a_line(results, capsys):
    for arguments in ((results / "none",), (results, "--since", "soon"), (results, "--prometheus", "/nowhere/x.prom")):
        code, _, err = report(capsys, *arguments)
        assert code == 2
        assert len(err.strip().splitlines()) == 1
    store = results / "none-yet"
    assert report(capsys, results, "--prometheus", results, "--store", store)[0] == 2  # a directory
    assert not store.exists()
    code, _, err = report(capsys, results, "--node", "n99")
    assert (code, err.count("\n")) == (3, 1)
    assert "no verdict of a node n99" in err
    code, _, err = report(capsys, results, "--node", "n1", "--part", "flux")
    assert code == 3
    assert "has all that the options ask for" in err


def test_a_fleet_has_the_words_of_a_battery_s_decision():
    assert [*Decision] == [ACCEPTED, REJECTED, UNDECIDED, FAILED]


def test_no_torch_is_imported():
    code = "import sys, suite.commands.fleet_report as c; c.FleetStore(c.Path('none')); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "False"


def test_without_duckdb_the_command_says_how_to_get_it(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError, match=r"lacks duckdb .*pip install.*\[fleet\]"):
        battery_store.database()
