"""The words of a node's verdict in the fleet's table: those of `suite.records.battery.Decision`, and two more.

As plain words: what decides imports more than a question about a node's history needs.
"""

from __future__ import annotations

ACCEPTED, REJECTED, UNDECIDED, FAILED = "accepted", "rejected", "not decidable", "execution failed"
NO_ANSWER, NOT_RUN = "no answer", "not run"
BAD = (REJECTED, FAILED, NO_ANSWER)  # a node is drained for
