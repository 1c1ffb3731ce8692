#!/bin/bash
# in-copy.sh COMMAND... runs a command in a copy of the work tree, which it may write to while tests read the tree. The
# copy's path is the same for all of a user's work trees: staticcheck's cache goes by path, and is 3 minutes of computing.
set -euo pipefail
copies=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kubeqemu
mkdir -p "$copies"
exec {lock}>"$copies/copy.lock"
flock "$lock"
rm -rf --one-file-system "$copies/copy"
mkdir "$copies/copy"
# A file that was deleted and is not committed yet is in Git's list still.
git ls-files -co --exclude-standard -z | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
	xargs -0 cp --parents -t "$copies/copy"
export TREE=$PWD
cd "$copies/copy"
"$@"
