# common.sh is what the tests of releases share. A script sources it after it has set repo and name, the cluster's.
export PATH=$repo/_output/bin:$PATH KUBECONFIG=$repo/_output/cluster/$name/kubeconfig

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; exit 1; }
# cluster runs the program of that name, which finds its folders from the repository.
cluster() { (cd "$repo" && command cluster "$@"); }

# commands PAGE SECTION N prints the Nth block of commands in a section of a page.
commands() {
	awk -v section="## $2" -v wanted="$3" '
		/^## / {on = $0 == section}
		/^```/ {shell = on && $0 == "```sh"; n += shell; next}
		shell && n == wanted' "$1" | grep . || fail "$1 has no block $3 of commands in its section $2"
}
