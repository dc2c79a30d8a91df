"""A ReFrame check: the battery of `accept` on one node, its figures beside those of the fleet.

reframe -C settings.py -c battery.py --distribute=idle -r

ReFrame starts it, on each node by --distribute, and judges the figures by itself. Needs ReFrame alone; the suite's own
python runs the battery. See docs/slurm.md.
"""

import json
import os
import subprocess
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable
from reframe.core.exceptions import SanityError

BAD_USAGE, UNDECIDED = 2, 3  # exit codes of `accept`
ENDED = "suite: exit code"


@rfm.simple_test
class Battery(rfm.RunOnlyRegressionTest):
    """Passes where `accept` accepts the node and no figure is beyond its reference; skipped if nothing is decided."""

    descr = "battery of accept"
    valid_systems = ["*"]  # noqa: RUF012  # of ReFrame
    valid_prog_environs = ["*"]  # noqa: RUF012  # of ReFrame
    num_tasks = 1
    exclusive_access = True
    time_limit = "30m"
    #: the checkout and its python, where all nodes see both
    suite_root = variable(str, value=os.environ.get("SUITE_ROOT", "/opt/suite"))
    suite_python = variable(str, value=os.environ.get("SUITE_PYTHON", "/opt/suite/.venv/bin/python"))
    #: a directory of records that all nodes share: that of the fleet
    results = variable(str, value=os.environ.get("SUITE_SHARED_RESULTS", "/shared/results"))
    #: further options of accept
    options = variable(str, value=os.environ.get("SUITE_ACCEPT", ""))
    #: "yes": figures are compared with the newest fleet's
    compare = variable(str, value="yes")

    @run_before("run")
    def the_command(self):
        """The battery, in the checkout."""
        self.prerun_cmds = [f"cd {self.suite_root}"]
        self.executable = self.suite_python
        self.executable_opts = ["-m suite accept --json", f"--results {self.results}", self.options]
        self.postrun_cmds = [f'echo "{ENDED} $?"']

    @sanity_function
    def accepted(self):
        """Only "accepted" passes; the part at fault is in the message."""
        output = Path(self.stagedir, str(self.stdout)).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if not lines:  # not a word about the node
            error = Path(self.stagedir, str(self.stderr)).read_text(encoding="utf-8", errors="replace").strip()
            why = (error.splitlines() or ["it said nothing"])[-1]
            self.skip_if(f"{ENDED} {UNDECIDED}" in output, f"not decided: {why}")
            bad_usage = f"{ENDED} {BAD_USAGE}" in output
            raise SanityError(f"{'bad usage' if bad_usage else 'no verdict'}, the node is not judged: {why}")
        self.said = json.loads(lines[-1])
        self.skip_if(self.said["exit_code"] == UNDECIDED, f"not decided: {self.said['summary']}")
        return sn.assert_eq(self.said["exit_code"], 0, msg=self.said["summary"])

    @run_before("performance")
    def beside_the_fleet(self):
        """Every figure that has a reference becomes a performance variable."""
        if self.compare != "yes":
            return
        command = [self.suite_python, "-m", "suite", "fleet", "references", "--results", self.results]
        said = subprocess.run(command, cwd=self.suite_root, capture_output=True, text=True, check=False)
        if said.returncode:
            raise SanityError(f"no references: {said.stderr.strip()}")
        known = json.loads(said.stdout)["figures"]
        findings = self.said["findings"]
        measured = {f"{f['check']} {f['compared_as']}": f["measured"] for f in findings if f.get("compared_as")}
        bounds = {}
        for name, value in measured.items():
            if value is None or name not in known:
                continue
            of_fleet = known[name]
            unit = of_fleet["unit"] or "1"
            self.perf_variables[name] = sn.make_performance_function(sn.defer(value), unit)
            bounds[name] = (of_fleet["value"], of_fleet["lower"], of_fleet["upper"], unit)
        self.reference = {self.current_partition.fullname: bounds}
