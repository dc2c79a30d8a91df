"""What it takes to read and tokenise a sample's documents here, measured apart from any training."""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_right
from pathlib import Path

import msgspec

from suite.job.options import Documents, Texts

MOST_SECONDS = 2.0
LEAST_SAMPLES = 64


def sample_seconds(texts: Texts, *, tokens: int, sequence: int, seed: int) -> float:
    """Mean seconds a sample, over samples at random places: at least 64, and as many as 2 s take."""
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    documents = msgspec.json.decode(Path(texts.documents_file).read_bytes(), type=Documents)
    tokenizer = Tokenizer.from_file(texts.tokenizer_file)
    places = random.Random(seed)
    bytes_at, tokens_at = documents.byte_offsets, documents.token_offsets
    begin = time.perf_counter()
    done = 0
    while done < LEAST_SAMPLES or time.perf_counter() - begin < MOST_SECONDS:
        first = places.randrange((tokens - 1) // sequence) * sequence
        number = bisect_right(tokens_at, first) - 1
        with open(texts.text_file, "rb") as file:
            file.seek(bytes_at[number])
            while tokens_at[number] <= first + sequence and number + 1 < len(tokens_at):
                tokenizer.encode(file.read(bytes_at[number + 1] - bytes_at[number]).decode())
                number += 1
        done += 1
    return (time.perf_counter() - begin) / done
