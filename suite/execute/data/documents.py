"""Tokens that are made anew from their documents each time they are asked for, as a naive script makes them."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer
from torch import Tensor

from suite.job.corpus import END_OF_TEXT
from suite.job.options import Documents, Texts


class TokenisedDocuments:
    """The corpus's tokens, of which a slice reads and tokenises every document that it touches, whole."""

    def __init__(self, texts: Texts) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library's threads do not survive a worker's fork
        self._text_file = texts.text_file
        self._documents = msgspec.json.decode(Path(texts.documents_file).read_bytes(), type=Documents)
        self._tokenizer = Tokenizer.from_file(texts.tokenizer_file)
        (self._end,) = self._tokenizer.encode(END_OF_TEXT).ids

    def __getitem__(self, place: slice) -> Tensor:
        bytes_at, tokens_at = self._documents.byte_offsets, self._documents.token_offsets
        number = bisect_right(tokens_at, place.start) - 1
        first = tokens_at[number]
        tokens: list[int] = []
        with open(self._text_file, "rb") as file:
            file.seek(bytes_at[number])
            while first + len(tokens) < place.stop and number + 1 < len(tokens_at):
                text = file.read(bytes_at[number + 1] - bytes_at[number]).decode()
                tokens += [*self._tokenizer.encode(text).ids, self._end]
                number += 1
        return torch.tensor(tokens[place.start - first : place.stop - first], dtype=torch.int32)
