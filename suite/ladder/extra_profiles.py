"""Measurements that only some rungs need: messages between hosts, more ranks at once, seconds to tokenise a sample."""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_right
from collections.abc import Callable

import msgspec

from suite.calibration.calibrate import CalibrationResult, between_hosts, with_ranks
from suite.job.events import Event, Status
from suite.job.options import Texts, document_offsets
from suite.ladder.request import LadderRun, wanted
from suite.ladder.rung import seconds_unknown, setting_above
from suite.machine.profile import Profile, disturbed
from suite.reproduce.reproduce import hosts_of

MOST_SECONDS = 2.0
LEAST_SAMPLES = 64


def with_messages(ladder_run: LadderRun, on_event: Callable[[int, Event], None]) -> LadderRun:
    """The run with a profile for rungs over hosts: this machine's, with messages as they are between those hosts.

    They are timed where such a rung is wanted and this machine's profile holds. Where that fails, the rung's time is
    not predicted, for the reason given.

    Raises:
        KeyboardInterrupt: by the user.
    """
    rungs, applicable = wanted(ladder_run)
    over = next((rung for rung in rungs if "hosts" in rung.changes and rung in applicable), None)
    if ladder_run.profile is None or over is None:
        return ladder_run
    plan = ladder_run.plan(setting_above(over, applicable, divisor=ladder_run.target.divisor))
    with hosts_of(plan) as hosts:
        result = between_hosts(ladder_run.profile, hosts, interface=plan.joined_by, on_event=on_event)
    profile, source = _extended(ladder_run, result, "messages between hosts")
    return msgspec.structs.replace(ladder_run, between_hosts=profile, between_hosts_source=source)


def ranks_missing(ladder_run: LadderRun) -> int | None:
    """The most ranks of a rung that is wanted on this machine alone, where its profile has fewer; else None."""
    rungs, applicable = wanted(ladder_run)
    if ladder_run.profile is None:
        return None
    most = ladder_run.profile.conditions.ranks
    for rung in rungs:
        if rung in applicable:
            setting = setting_above(rung, applicable, divisor=ladder_run.target.divisor)
            if setting.hosts == 1 and not seconds_unknown(setting):
                most = max(most, ladder_run.plan(setting).layout.ranks)
    return most if most > ladder_run.profile.conditions.ranks else None


def with_more_ranks(ladder_run: LadderRun, ranks: int, on_event: Callable[[int, Event], None]) -> LadderRun:
    """The run with a second profile: this machine's, with what so many ranks take at once.

    Where that cannot be measured, or others kept the processors busy meanwhile, the times of rungs with more ranks than
    the first profile has are not predicted, for the reason given.

    Raises:
        KeyboardInterrupt: by the user.
    """
    assert ladder_run.profile is not None
    subject = f"{ranks} ranks at once"
    try:
        result = with_ranks(ladder_run.profile, ranks, on_event=on_event)
    except OSError as error:  # no room for scratch files
        profile, source = None, f"{subject} could not be timed: {error.strerror or error}"
    else:
        profile, source = _extended(ladder_run, result, subject)
        if profile is not None and (why := disturbed(profile)):
            profile, source = None, f"{subject} were timed while others ran: {why}"
    return msgspec.structs.replace(ladder_run, more_ranks=profile, more_ranks_source=source)


def _extended(ladder_run: LadderRun, result: CalibrationResult, subject: str) -> tuple[Profile | None, str]:
    """The extended profile, and what it is or why there is none."""
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if result.profile is None:
        return None, f"{subject} could not be timed: {result.status.value}: {result.message}"
    return result.profile, f"{ladder_run.profile_source}, {subject} timed apart"


def sample_seconds(texts: Texts, *, tokens: int, sequence: int, seed: int) -> float:
    """Mean seconds to read and tokenise a sample's documents, over 64 random ones or as many as 2 s take."""
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    documents = document_offsets(texts)
    tokenizer = Tokenizer.from_file(texts.tokenizer_file)
    chance = random.Random(seed)
    bytes_at, tokens_at = documents.byte_offsets, documents.token_offsets
    begin = time.perf_counter()
    done = 0
    while done < LEAST_SAMPLES or time.perf_counter() - begin < MOST_SECONDS:
        first = chance.randrange((tokens - 1) // sequence) * sequence
        number = bisect_right(tokens_at, first) - 1
        with open(texts.text_file, "rb") as file:
            file.seek(bytes_at[number])
            while tokens_at[number] <= first + sequence and number + 1 < len(tokens_at):
                tokenizer.encode(file.read(bytes_at[number + 1] - bytes_at[number]).decode())
                number += 1
        done += 1
    return (time.perf_counter() - begin) / done
