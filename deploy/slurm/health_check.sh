#!/bin/sh
# HealthCheckProgram=…/health_check.sh, HealthCheckInterval=3600, HealthCheckNodeState=IDLE: Slurm judges by no exit code
# here, so the script drains by itself. It does nothing where a job runs. One attempt: Slurm ends it after 60 s. So a failed
# execution is remembered, and drains if the next check sees one too.
. "$(dirname "$(readlink -f "$0")")/gate.sh"
if others; then
    say "health check: a job runs here or Slurm does not say, nothing is checked"
    exit 0
fi
check --only "$SUITE_CHECKS"
failed=$SUITE_RESULTS/.failed_once.$node # nodes may share the directory
if [ "$verdict" = 4 ] && [ ! -e "$failed" ]; then
    : >"$failed"
    say "health check: an execution failed, the next check decides: $words"
    exit 0
fi
case $verdict in 0 | 1 | 4) rm -f "$failed" ;; esac
case $verdict in
1 | 4)
    if others; then # one began meanwhile, and may be why
        say "health check: a job began meanwhile, nothing is drained: $words"
        exit 0
    fi
    drain "$words"
    ;;
0) ;;
*) unjudged "health check" ;;
esac
exit 0
