"""Places of experts in one process as context-parallel ranks have them: each routes the positions that it is dealt."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import torch
from torch import Tensor

from reference_runs.run import Architecture
from suite.execute.model.expert_capacity import Places
from suite.execute.model.position import dealt


def dealt_places(architecture: Architecture, *, ranks: int) -> AbstractContextManager[object]:
    """Routers give each of so many parts of every sequence places of its own."""
    if ranks == 1:
        return nullcontext()
    whole = Places.of

    def of(chosen_NC: Tensor, experts: int, _each: int) -> Places:
        tokens, choices = chosen_NC.shape
        each = architecture.expert_places(tokens=tokens // ranks)
        assert each is not None
        numbers_BT = torch.arange(tokens).view(-1, architecture.sequence)
        rows, filled = [], []
        of_rows, kept = torch.empty(tokens, choices, dtype=torch.long), torch.empty(tokens, choices, dtype=torch.bool)
        for rank in range(ranks):
            own_N = dealt(numbers_BT, rank=rank, ranks=ranks).flatten()
            places = whole(chosen_NC[own_N], experts, each)
            rows.append((own_N[places.rows // choices] * choices + places.rows % choices).view(experts, each))
            filled.append(places.filled.view(experts, each))
            expert, within = places.of_rows // each, places.of_rows % each
            of_rows[own_N] = (expert * ranks * each + rank * each + within).view(-1, choices)
            kept[own_N] = places.kept
        ends_E = torch.arange(1, experts + 1, dtype=torch.int32) * ranks * each
        flat = torch.cat(rows, 1).flatten(), torch.cat(filled, 1).view(-1, 1), of_rows.flatten()
        return Places(*flat, kept, ends_E)

    return mock.patch.object(Places, "of", of)
