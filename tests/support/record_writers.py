"""Writers of records that are killed at random: python -m tests.support.record_writers RESULTS LOGS N EACH SEED.

Every record is the launch of LOGS/begin.json under a new id. A writer reports what is stored
in its log: "opened ID" when the first half is, "stored ID DIGEST" when both are.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import msgspec

from suite.machine.processes import boot_identity, started_ticks
from suite.records import store
from suite.records.record import Begin, Launcher
from tests.support.record_halves import end

KILLS = 0.2  # a turn of the loop, of 10 ms and what the system adds
LEAST_KILLS = 2  # for each writer, before it may have done enough


def write(results: Path, log: int, begin: Begin, seed: int) -> None:
    chance = random.Random(seed)
    launcher = Launcher(os.getpid(), started_ticks(os.getpid()), boot_identity())
    directory = store.records_directory(results, begin.run)
    while True:
        first = msgspec.structs.replace(begin, id=store.new_identity(), launcher=launcher, started=time.time())
        opened = store.Opened(directory, first)
        os.write(log, f"opened {first.id}\n".encode())
        text = chance.randbytes(chance.randrange(100_000)).hex()
        digest = hashlib.sha256(text.encode()).hexdigest()
        opened.close(end(first.id, message=digest, log_tail=text))
        os.write(log, f"stored {first.id} {digest}\n".encode())


def stored(log: Path) -> int:
    return log.read_bytes().count(b"stored ") if log.exists() else 0


def main(results: Path, logs: Path, writers: int, each: int, seed: int) -> None:
    chance = random.Random(seed)
    begin = msgspec.json.decode((logs / "begin.json").read_bytes(), type=Begin)
    children: dict[int, int] = {}
    killed = 0
    while True:
        enough = killed >= LEAST_KILLS * writers
        done = {writer for writer in range(writers) if enough and stored(logs / f"{writer}.log") >= each}
        for writer in range(writers):
            if writer not in children.values() and writer not in done:
                number = chance.getrandbits(32)
                child = os.fork()
                if child == 0:
                    log = os.open(logs / f"{writer}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                    write(results, log, begin, number)
                children[child] = writer
        if not children:
            break
        time.sleep(chance.expovariate(100))
        victims = [child for child, writer in children.items() if writer in done]
        if chance.random() < KILLS:
            victims = [chance.choice(list(children))]
            killed += 1
        for child in victims:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            del children[child]
    (logs / "kills").write_text(str(killed), encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
