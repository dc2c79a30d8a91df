"""Messages between GPUs go through the network cards where the node has some that it may use; else it says why not."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

from suite.acceptance import measurements, nic_loopback, phases
from suite.acceptance.evidence import Exchange, NicLoopback, ProbeResult
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.loopback import loopback_findings
from suite.acceptance.nic_loopback import why_no_access, why_not
from suite.acceptance.node_state import HostReading, NicPort
from suite.job.events import Status
from tests.support.batteries import NOTHING, exchange, planned_battery, probing, surroundings

PORTS = [NicPort(name=f"mlx5_{number}", port=1, state="ACTIVE", gbits=400.0) for number in range(2)]
LINE = 2 * 400e9 / 8  # byte/s of both


@pytest.fixture
def phase(tmp_path, monkeypatch):
    """A function: the phase of a battery with these cards, and where it leaves the variables of its launch."""
    seen = {}
    devices = tmp_path / "infiniband"
    devices.mkdir()
    (devices / "uverbs0").touch()
    monkeypatch.setattr(nic_loopback, "DEVICES", devices)

    def of(*, ports=PORTS, status=Status.OK, **changes):
        def probe(*_arguments, **parts):
            seen.update({name: value for name, value in os.environ.items() if name.startswith("NCCL_")}, **parts)
            return ProbeResult(status=status, message="m", ranks_at_fault=[], seconds=1.0, exchanges=ring(4, 25e9))

        monkeypatch.setattr(measurements, "probe_result", probe)
        battery = planned_battery(tmp_path, **({"device": "cuda", "ranks": 4} | changes))
        battery.gpu_watch = SimpleNamespace(host=HostReading(nics=ports))
        return phases.loopback_phase(battery)

    of.seen, of.devices = seen, devices
    return of


def ring(ranks, rate, wrong=0):
    """All-reduces of so many ranks at this rate."""
    return [Exchange(rank=rank, peer=None, bytes_per_second=rate, wrong=wrong, first="at 5") for rank in range(ranks)]


def test_the_launch_has_nothing_but_the_network_and_leaves_the_variables_as_they_were(phase, monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    monkeypatch.delenv("NCCL_NET", raising=False)
    (found,) = phase().run(None)
    assert (found.ports, found.gbits, len(found.exchanges)) == (["mlx5_0", "mlx5_1"], 800.0, 4)
    wanted = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_NET": "IB"}
    assert wanted.items() <= phase.seen.items()
    assert (phase.seen["exchanges"], phase.seen["soak"], phase.seen["replays"]) == (True, False, False)
    assert os.environ["NCCL_P2P_DISABLE"] == "0"
    assert "NCCL_NET" not in os.environ
    phase.seen.clear()
    phase(ports=[msgspec.structs.replace(PORTS[0], name="efa_0")]).run(None)
    assert "NCCL_NET" not in phase.seen  # NCCL reaches that by a plugin
    with pytest.raises(KeyboardInterrupt):
        phase(status=Status.INTERRUPTED).run(None)


def test_it_runs_only_where_gpus_have_active_cards_that_it_may_use(phase):
    down = [msgspec.structs.replace(port, state="DOWN") for port in PORTS]
    cases = {
        "only GPUs exchange": {"device": "cpu"},
        "no RDMA network card": {"ports": []},
        "no port of an RDMA network card is active": {"ports": down},
        "one rank alone": {"ranks": 1},
    }
    planned = {why: phase(**changes) for why, changes in cases.items()}
    assert planned == dict.fromkeys(cases)
    usual = {"device": "cuda", "ranks": 4, "ports": PORTS}
    assert all(why_not(**(usual | changes)).startswith(why) for why, changes in cases.items())
    assert why_not(**usual) == why_no_access() == ""
    assert phase(selected=frozenset({1})) is None
    (phase.devices / "uverbs0").unlink()
    (found,) = phase().run(None)
    assert found.why_not.endswith("has no card: was it given to the container?")
    assert [one.verdict for one in loopback_findings(found, NOTHING)] == ["NOT RUN"]


def test_a_battery_says_why_no_message_went_through_cards():
    around = surroundings(device="cpu")
    health = Health(gpus=[], host_after=HostReading())
    found = battery_findings([around, probing(exchanges=[exchange(0, 1, 1e9)]), health], NOTHING, others=0.05)
    (one,) = (one for one in found if one.subject == "network cards" and one.check == 5)
    assert (one.verdict, one.evidence) == ("NOT RUN", "only GPUs exchange messages through network cards")


def judged(**changes):
    usual = {"exchanges": ring(4, LINE / 4), "ports": ["mlx5_0", "mlx5_1"], "gbits": 800.0}
    found = loopback_findings(NicLoopback(**(usual | changes)), NOTHING)
    return {one.subject.partition(", ")[2]: one for one in found}


def pairs(slow):
    return [
        Exchange(
            rank=first, peer=second, bytes_per_second=slow if (first, second) == (0, 2) else 50e9, wrong=0, first=""
        )
        for first, second in ((0, 1), (0, 2), (1, 2))
    ]


def test_rates_warn_below_half_of_the_cards_and_wrong_bits_reject():
    good = judged()
    assert {name: one.verdict for name, one in good.items()} == {
        "busbw of 4 ranks": "PASS",
        "messages to the bit": "PASS",
    }
    by_tcp = judged(exchanges=ring(4, 2e9))["busbw of 4 ranks"]
    assert (by_tcp.verdict, by_tcp.source) == ("WARN", "rate of 2 ports")
    slow, usual = (judged(exchanges=pairs(rate))["slowest pair"] for rate in (30e9, 45e9))
    assert (slow.verdict, slow.part, usual.verdict) == ("WARN", "link 0-2 through network cards", "PASS")
    wrong = judged(exchanges=ring(4, LINE / 4, wrong=3))["messages to the bit"]
    assert (wrong.verdict, wrong.part, wrong.action) == ("FAIL", "network cards: mlx5_0, mlx5_1", "return")
    assert wrong.evidence.startswith("rank 0: 3 wrong, at 5")


def test_a_crash_leaves_the_cards_open_and_a_hang_is_one():
    crash = judged(status=Status.CRASHED, message="ibv_reg_mr failed: Cannot allocate memory")[""]
    assert (crash.verdict, crash.status, crash.action) == ("INCONCLUSIVE", "ok", "fix the setting")
    assert "ibv_reg_mr" in crash.evidence
    hang = judged(status=Status.HANG, message="rank 1 silent")[""]
    assert (hang.verdict, hang.status, hang.part) == ("HANG", "hang", "network cards: mlx5_0, mlx5_1")
