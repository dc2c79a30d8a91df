"""Command that an engine starts on a node: one battery, and the node's answer in the fleet's directory.

python -m suite.fleet.node_battery ANSWER.json NODE RESULTS [OPTIONS OF accept]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from suite.fleet.fleet_record import NodeAnswer, keep
from suite.machine.processes import die_with_parent
from suite.paths import ROOT

WORDS_CHARACTERS = 400
VERDICTS, NO_VERDICT = (1, 4), 2  # exit codes of `accept`: rejected and execution failed are told, and bad usage is not


def main() -> int:
    """Run `accept` with these options, and keep what came of it."""
    answer, node, results, *options = sys.argv[1:]
    started = time.time()
    command = [sys.executable, "-m", "suite", "accept", "--json", "--results", results, *options]
    said = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=die_with_parent,
    )
    entry: dict[str, object] = {}
    if said.stdout.startswith("{"):
        entry = msgspec.json.decode(said.stdout)
    code = said.returncode if said.returncode >= 0 else 128 - said.returncode
    if not entry and code in VERDICTS:  # Python ends so too, where a package or the checkout is missing
        code = NO_VERDICT
    keep(
        Path(answer),
        NodeAnswer(
            node=node,
            exit_code=code,
            started=started,
            finished=time.time(),
            battery=str(entry.get("id", "")),
            record=Path(str(entry.get("record", ""))).name,
            words=str(entry.get("summary", "")) or said.stderr.strip()[-WORDS_CHARACTERS:],
            switch=os.environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0],
        ),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
