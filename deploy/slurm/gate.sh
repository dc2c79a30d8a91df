# What the gates share; sourced by them. Needs POSIX sh and Slurm's commands.
#
# Verdicts are accept's exit codes: 0 accepted, 1 rejected, 2 bad usage or a missing package, 3 not decidable, 4 an
# execution failed. 1 drains, and so does 4 if it is seen twice; nothing else says that the node is bad.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:${SLURM_BIN:-/usr/bin}
export PATH
here=$(dirname "$(readlink -f "$0")")
conf=${SUITE_CONF:-$here/gates.conf}
if [ ! -r "$conf" ]; then # a script that ends with another code than 0 would drain every node that lacks it
    logger -t suite -- "no $conf: nothing is checked" 2>/dev/null
    echo "suite: no $conf: nothing is checked" >&2
    exit "${without_conf:-0}"
fi
. "$conf"
node=${SLURMD_NODENAME:-$(hostname -s)}

say() { # a line for the system's log; never a reason to fail
    logger -t suite -- "$*" 2>/dev/null || true
    echo "suite: $*" >&2
}

# check OPTIONS: one battery; sets `verdict` to its exit code and `words` to its one line. 124: not done in time.
# 1 and 4 are verdicts only with that line: Python and the shell end with 1 too where a checkout or a package is missing.
check() {
    words=$(cd "$SUITE_ROOT" && HOME=${HOME:-/root} timeout -k 10 "$SUITE_SECONDS" \
        "$SUITE_PYTHON" -m suite accept --device "$SUITE_DEVICE" ${SUITE_DEVICES:+--devices "$SUITE_DEVICES"} \
        --results "$SUITE_RESULTS" --summary "$@" 2>"$SUITE_RESULTS/.gate.$node.$$")
    verdict=$?
    if [ -z "$words" ]; then
        words=$(tail -n 1 "$SUITE_RESULTS/.gate.$node.$$" 2>/dev/null)
        case $verdict in 1 | 4) verdict=2 words="no verdict: $words" ;; esac
    fi
    rm -f "$SUITE_RESULTS/.gate.$node.$$"
}

# decided OPTIONS: like check; what cannot be decided (3, or not done in time) is asked again, some times, and a failed
# execution (4) once. Asking again changes no usage (2).
decided() {
    attempt=1
    failed=
    while :; do
        check "$@"
        case $verdict in
        0 | 1 | 2) return ;;
        4)
            [ -z "$failed" ] || return
            failed=once
            ;;
        *)
            [ "$attempt" -lt "$SUITE_ATTEMPTS" ] || return
            attempt=$((attempt + 1))
            ;;
        esac
        sleep "$SUITE_PAUSE_SECONDS"
    done
}

# unjudged GATE: a line that says why the node is not judged.
unjudged() {
    case $verdict in
    2) say "$1: bad usage, or a package is missing: correct it, the node is not judged: $words" ;;
    *) say "$1: not decided (exit code $verdict): $words" ;;
    esac
}

# drain WORDS: no further job begins here; a reason that is there stays. At most 200 characters of ASCII.
drain() {
    state=$(sinfo --noheader -N -n "$node" -o %T | head -n 1)
    case $state in drain*) say "already $state: $*"; return ;; esac
    reason=$(printf '%s' "suite: $*" | LC_ALL=C tr -c ' -~' ' ' | tr '"' "'" | cut -c 1-200)
    scontrol update nodename="$node" state=drain reason="$reason" && say "drained $node: $reason"
}

# others: whether a job runs here besides the one that is beginning or ending. Where Slurm does not say: yes.
others() {
    jobs=$(squeue --noheader -w "$node" -t RUNNING,COMPLETING,CONFIGURING,SUSPENDED -o %A) || return 0
    [ -n "$jobs" ] && printf '%s\n' "$jobs" | grep -qv "^${SLURM_JOB_ID:-none}\$"
}
