"""Exit codes of every command."""

PASS = 0
FAIL = 1
BAD_INPUT = 2
INCONCLUSIVE = 3  # nothing could be judged
EXECUTION_FAILED = 4
INTERRUPTED = 130
NOBODY_READS = 141  # as a shell calls the end by SIGPIPE
