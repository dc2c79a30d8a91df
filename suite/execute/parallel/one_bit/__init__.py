"""1-bit Adam for any PyTorch model: Adam whose averaging over ranks takes one bit an element after a warm-up.

Needs torch and `kernels` alone. docs/one_bit_adam.md shows its use.
"""

from suite.execute.parallel.one_bit.adam import OneBitAdam
from suite.execute.parallel.one_bit.all_reduce import ErrorFeedback, compressed_all_reduce
from suite.execute.parallel.one_bit.buckets import parameter_groups
from suite.execute.parallel.one_bit.schedule import Renewal, Settled

__all__ = ["ErrorFeedback", "OneBitAdam", "Renewal", "Settled", "compressed_all_reduce", "parameter_groups"]
