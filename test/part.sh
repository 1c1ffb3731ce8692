#!/bin/bash
# part.sh [--yield] NAME COMMAND... runs a command as a part of make test, and adds its name and when it began and ended, in
# seconds of the machine's clock, to the file parts in the folder TIMES. tools/testtimes reads it.
#
# With --yield the command gets what CPU time the other parts leave. Linux shares the CPUs between sessions first (sched(7),
# "The autogroup feature"), and nice alone counts within a session: so the command gets a session of its own.
set -uo pipefail
before=()
if [ "$1" = --yield ]; then
	shift
	before=(setsid bash -c 'echo 5 >/proc/self/autogroup 2>/dev/null; exec nice -n 5 "$@"' yield)
fi
name=$1
shift
mkdir -p "$TIMES"
begin=$(date +%s.%N)
"${before[@]}" "$@" &
command=$!
# An interrupt by the keyboard does not reach another session.
trap 'kill -- -"$command" 2>/dev/null || kill "$command" 2>/dev/null' INT TERM
wait "$command"
status=$?
printf '%s %s %s\n' "$name" "$begin" "$(date +%s.%N)" >>"$TIMES/parts"
exit "$status"
