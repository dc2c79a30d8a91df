#!/bin/sh
# HealthCheckProgram=…/health_check.sh, HealthCheckInterval=3600, HealthCheckNodeState=IDLE: Slurm judges by no exit code
# here, so the script drains by itself. It does nothing where a job runs. One attempt: Slurm ends it after 60 s.
. "$(dirname "$(readlink -f "$0")")/gate.sh"
if others; then
    say "health check: a job runs here or Slurm does not say, nothing is checked"
    exit 0
fi
check --only "$SUITE_CHECKS"
case $verdict in
1 | 4)
    if others; then # one began meanwhile, and may be why
        say "health check: a job began meanwhile, nothing is drained: $words"
        exit 0
    fi
    drain "$words"
    ;;
0) ;;
*) say "health check: not decided (exit code $verdict): $words" ;;
esac
exit 0
