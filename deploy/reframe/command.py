"""A ReFrame check that runs one given command on one given node: what `fleet accept --engine reframe` starts.

reframe -c command.py -S request=REQUEST.json -r

The request is a JSON object: "node", "command" (words), "directory" to run it in, "label" as the name of the job where
the scheduler is Slurm, and "said": the file that what the command said is written to, once its job has begun. Needs
ReFrame alone. See docs/slurm.md.
"""

import json
import shlex
import socket
from pathlib import Path

import reframe as rfm
from reframe.core.backends import getlauncher
from reframe.core.builtins import run_after, run_before, sanity_function, variable
from reframe.core.exceptions import JobError, SanityError
from reframe.core.runtime import runtime

BEGUN, ENDED = "suite: begun", "suite: exit code"  # lines around what the command says
SLURM = ("slurm", "squeue")
PINNED = (*SLURM, "ssh")  # schedulers that ReFrame can ask for a node by its name


@rfm.simple_test
class Command(rfm.RunOnlyRegressionTest):
    """Passes where the command ends with 0. On the system's first partition that is not local, or RFM_SYSTEM's."""

    descr = "one command on one node"
    valid_systems = ["*"]  # noqa: RUF012  # of ReFrame
    valid_prog_environs = ["*"]  # noqa: RUF012  # of ReFrame
    num_tasks = 1
    exclusive_access = True
    max_pending_time = "60s"
    request = variable(str)

    @run_after("setup")
    def one_node(self):
        """The partition and the node; without a launcher, because the command starts its own ranks."""
        partitions = list(runtime().system.partitions)
        remote = [one for one in partitions if one.scheduler.registered_name != "local"]
        chosen = (remote or partitions)[0]
        is_first = self.current_environ.name == self.current_partition.environs[0].name
        self.skip_if(self.current_partition.fullname != chosen.fullname or not is_first, "another one is taken")
        self.asked = json.loads(Path(self.request).read_text(encoding="utf-8"))
        node, scheduler = self.asked["node"], chosen.scheduler.registered_name
        here = socket.gethostname()
        if scheduler == "local":
            if node not in (here, here.partition(".")[0], "localhost"):
                raise JobError(f"{chosen.fullname} has the scheduler local, which reaches no {node} from {here}")
        elif scheduler not in PINNED:
            raise JobError(
                f"{chosen.fullname} has the scheduler {scheduler}, of which ReFrame asks for no node by name"
            )
        self.job.launcher = getlauncher("local")()
        self.job.pin_nodes = [node]
        if scheduler in SLURM:
            self.job.options = [f"--job-name={self.asked['label']}", "--no-requeue"]

    @run_before("run")
    def the_command(self):
        """The command between two lines that say that it began, and how it ended."""
        self.prerun_cmds = [f"cd {shlex.quote(self.asked['directory'])}", f"echo '{BEGUN}'"]
        self.executable = shlex.join(self.asked["command"])
        self.executable_opts = ["2>&1"]
        self.postrun_cmds = [f'echo "{ENDED} $?"']

    @sanity_function
    def ended_well(self):
        """Keep what it said; a job that did not begin says nothing."""
        output = Path(self.stagedir, str(self.stdout))
        said = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if BEGUN not in said:
            raise SanityError(f"the job did not begin: {self.job.state}")
        Path(self.asked["said"]).write_text(said.partition(f"{BEGUN}\n")[2], encoding="utf-8")
        last = said.rstrip().splitlines()[-1]
        if last != f"{ENDED} 0":
            raise SanityError(last if last.startswith(ENDED) else f"the job ended amid the command: {self.job.state}")
        return True
