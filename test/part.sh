#!/bin/bash
# part.sh NAME COMMAND... runs a command as a part of make test, and adds its name and when it began and ended, in seconds of
# the machine's clock, to the file parts in the folder TIMES. tools/testtimes reads it.
set -uo pipefail
name=$1
shift
mkdir -p "$TIMES"
begin=$(date +%s.%N)
"$@"
status=$?
printf '%s %s %s\n' "$name" "$begin" "$(date +%s.%N)" >>"$TIMES/parts"
exit "$status"
