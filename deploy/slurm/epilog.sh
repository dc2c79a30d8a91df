#!/bin/sh
# Epilog=…/epilog.sh: after a job. A node that the job left broken is drained; it ends with 0, because Slurm would drain
# the node for any other code, with a reason of its own.
. "$(dirname "$(readlink -f "$0")")/gate.sh"
others_share=0.05
if others; then others_share=1; fi
decided --only "$SUITE_CHECKS" --others "$others_share"
case $verdict in
1 | 4) drain "$words" ;;
0) ;;
*) unjudged epilog ;;
esac
exit 0
