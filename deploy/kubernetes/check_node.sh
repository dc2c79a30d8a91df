#!/bin/sh
# In a pod on each node: a battery, and its verdict on the Node: a condition, and a taint where the node is bad.
# Needs POSIX sh, timeout, kubectl and the suite's python in the image. Settings are the container's environment:
#   NODE_NAME                 this node
#   SUITE_ROOT, SUITE_PYTHON  the checkout and its python
#   SUITE_RESULTS             a directory for records
#   SUITE_ACCEPT              options of accept
#   SUITE_SECONDS             of a battery
#   SUITE_ATTEMPTS            where nothing could be decided
#   SUITE_PAUSE_SECONDS       between attempts
#   SUITE_EVERY_SECONDS       between batteries; 0: one battery, whose exit code is that of accept
#   SUITE_RELEASE             yes: an accepted battery makes a bad node good again
: "${NODE_NAME:?}" "${SUITE_ROOT:?}" "${SUITE_PYTHON:?}" "${SUITE_RESULTS:?}"
cd "$SUITE_ROOT" || exit 4
release=
if [ "${SUITE_RELEASE:-no}" = yes ]; then release=--release; fi
said=$(mktemp -d) || exit 4
trap 'rm -rf "$said"' EXIT
trap 'kill "$child" 2>/dev/null; wait "$child"; exit 143' TERM INT
child=

# run COMMAND: in the background, so that the end of the pod ends it too
run() {
    "$@" &
    child=$!
    wait "$child"
}

# battery: sets `verdict` to its exit code and `words` to its one line. What cannot be decided is asked again, a failed
# execution once; asking again changes no usage (2).
# 1 and 4 are verdicts only with that line: Python ends with 1 too where a package is missing, on every node of a sweep.
battery() {
    attempt=1
    failed=
    while :; do
        # shellcheck disable=SC2086  # several options
        run timeout -k 10 "${SUITE_SECONDS:-3600}" "$SUITE_PYTHON" -m suite accept --results "$SUITE_RESULTS" --summary \
            ${SUITE_ACCEPT:-} >"$said/words" 2>"$said/errors"
        verdict=$?
        words=$(cat "$said/words")
        if [ -z "$words" ]; then
            words=$(tail -n 1 "$said/errors")
            case $verdict in 1 | 4) verdict=2 words="no verdict: $words" ;; esac
        fi
        case $verdict in
        0 | 1 | 2) return ;;
        4)
            [ -z "$failed" ] || return
            failed=once
            ;;
        *)
            [ "$attempt" -lt "${SUITE_ATTEMPTS:-3}" ] || return
            attempt=$((attempt + 1))
            ;;
        esac
        run sleep "${SUITE_PAUSE_SECONDS:-10}"
    done
}

# patched WHAT OPTIONS OF KUBECTL: made for the Node as it is now; somebody else's change meanwhile: made again
patched() {
    what=$1
    shift
    attempt=1
    while :; do
        kubectl get node "$NODE_NAME" -o json >"$said/node" &&
            patch=$("$SUITE_PYTHON" -m suite fleet node-patch "$what" "$said/node" --code "$verdict" --words "$words" $release) &&
            { [ "$patch" = "{}" ] || kubectl patch node "$NODE_NAME" "$@" --patch "$patch"; } && return 0
        [ "$attempt" -lt 5 ] || return 1
        attempt=$((attempt + 1))
        run sleep 1
    done
}

while :; do
    battery
    echo "suite: $NODE_NAME: exit code $verdict: $words"
    # the taint first: it is what keeps pods away
    patched taints --type=merge && patched condition --subresource=status --type=strategic ||
        echo "suite: $NODE_NAME: the verdict could not be put on the Node" >&2
    [ "${SUITE_EVERY_SECONDS:-0}" -gt 0 ] || exit "$verdict"
    run sleep "$SUITE_EVERY_SECONDS"
done
