#!/bin/sh
# Prolog=…/prolog.sh: before a job begins. A rejected node is drained with the part as reason, and the job goes elsewhere.
# What cannot be decided never drains: the job begins. On a node that other jobs share, their load is allowed for: bits and
# counters are checked, which rest on no clock.
. "$(dirname "$(readlink -f "$0")")/gate.sh"
others_share=0.05
if others; then others_share=1; fi
decided --only "$SUITE_CHECKS" --others "$others_share"
case $verdict in
1 | 4)
    drain "$words"
    exit 1 # Slurm requeues the job; the node is drained already, with our reason
    ;;
0) ;;
*) unjudged prolog ;;
esac
exit 0
