"""What each operator of the executed model allocates, keeps for the backward pass, gives back, and computes.

Seen in PyTorch 2.13 by its profiler's memory events and operators on the CPU; tools/autograd/derivatives.yaml says what
is kept. `host_calls` has the views and nodes of each line of suite/execute/model.
"""

from __future__ import annotations

from suite.predict.simulation.attention_operators import AttentionOperators
from suite.predict.simulation.element_wise_operators import ElementWiseOperators
from suite.predict.simulation.loss_operators import LossOperators
from suite.predict.simulation.matrix_operators import MatrixOperators


class Operators(MatrixOperators, AttentionOperators, ElementWiseOperators, LossOperators):
    """All operators of the decoder."""
