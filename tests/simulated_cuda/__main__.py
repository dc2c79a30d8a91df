"""Run a command with simulated devices: python -m tests.simulated_cuda --devices 8 -- python -m suite accept"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from tests.simulated_cuda.environment import simulated_environment

parser = argparse.ArgumentParser(prog="python -m tests.simulated_cuda")
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--model", default="H100")
for setting in ("memory", "mig", "times", "faults", "log", "moved", "state", "values"):
    parser.add_argument(f"--{setting}", default=None)
parser.add_argument("command", nargs="+")
given = vars(parser.parse_args())
command = given.pop("command")
environment = simulated_environment(**{name: value for name, value in given.items() if value is not None})
program = sys.executable if command[0] == "python" else shutil.which(command[0]) or command[0]
os.execve(program, [program, *command[1:]], environment)  # noqa: S606  # no shell is wanted
