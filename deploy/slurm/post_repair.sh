#!/bin/sh
# post_repair.sh NODE PARTNER PARTNER: after a repair, on a machine with Slurm's commands, by an administrator.
# A reservation keeps other jobs away from the node and two idle partners while they are judged together: its battery, its
# links, its clock. Accepted: the node is released. Otherwise it is drained again, with the part as reason, and the exit code is 1.
# Options of `fleet accept` for all nodes in SUITE_FLEET, of `accept` in SUITE_ACCEPT.
without_conf=2
. "$(dirname "$(readlink -f "$0")")/gate.sh"
[ $# -ge 3 ] || { echo "usage: post_repair.sh NODE PARTNER PARTNER" >&2; exit 2; }
repaired=$1
names=$(printf '%s,' "$@")
names=${names%,}
before=$(sinfo --noheader -N -n "$repaired" -o %E | head -n 1)
reservation=suite_$(date +%s)_$$
scontrol create reservation="$reservation" nodes="$names" users="$(id -un)" starttime=now duration=infinite \
    flags=maint,ignore_jobs >&2 || exit 4
keep=drain
release() {
    if [ "$keep" = drain ]; then
        words=$(printf '%s' "${reason:-$before}" | LC_ALL=C tr -c ' -~' ' ' | cut -c 1-200)
        scontrol update nodename="$repaired" state=drain reason="$words"
    fi
    scontrol delete reservation="$reservation" >&2
}
trap release EXIT
trap 'exit 130' INT TERM HUP
scontrol update nodename="$repaired" state=resume || exit 4
sleep 2 # until the controller has it
cd "$SUITE_ROOT" || exit 4
# shellcheck disable=SC2086  # several options
reason=$(SLURM_RESERVATION=$reservation "$SUITE_PYTHON" -m suite fleet accept --nodes "$names" --groups none \
    --results "$SUITE_SHARED_RESULTS" --device "$SUITE_DEVICE" --json ${SUITE_FLEET:-} -- \
    ${SUITE_DEVICES:+--devices "$SUITE_DEVICES"} ${SUITE_ACCEPT:-} |
    "$SUITE_PYTHON" -c '
import json, sys # this fleet alone: an earlier one may have accepted the node
row = next(row for row in json.load(sys.stdin)["rows"] if row["node"] == sys.argv[1])
print("suite:", row["part"] or "node", row["verdict"], row["evidence"])
sys.exit(row["verdict"] != "accepted")' "$repaired")
judged=$?
if [ "$judged" = 0 ]; then
    keep=released
    say "released $repaired"
    exit 0
fi
say "$reason"
exit 1
