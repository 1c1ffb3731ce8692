#!/bin/bash
# check.sh builds a release of the commit that is checked out, and follows its INSTALL.md from its folder alone, on a
# cluster of its own without a registry, until the sample's guest shows its prompt. `make release-check` builds what it
# needs.
#
#   VERSION   of the release (default v0.0.0-check)
#   RELEASE   a release's folder that was built before; nothing is built then
#   ARCHES    as in config/release.sh
#   KUBERNETES  an older release of the cluster's Kubernetes, which `cluster build --release` built, such as 1.33
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=${VERSION:-v0.0.0-check}
name=${CLUSTER:-release}
programs=$repo/_output/bin${KUBERNETES:+-$KUBERNETES}
. "$repo/test/release/common.sh"
PATH=$programs:$PATH

if [ -n "${RELEASE:-}" ]; then
	built=$(realpath "$RELEASE")
else
	"$repo/config/release.sh" "$version"
	built=$repo/_output/release/$version
fi
version=$(basename "$built")

# The copy's path has nothing of the repository, and one of its bytes may change.
work=$(mktemp -d)
folder=$work/$version
trap 'cluster down --name "$name"; cluster check --name "$name"; rm -rf --one-file-system "$work"' EXIT
cp -r "$built" "$folder"
cd "$folder"

say "checksums"
sha256sum --quiet -c SHA256SUMS
[ "$(find . -type f ! -name SHA256SUMS | wc -l)" = "$(wc -l <SHA256SUMS)" ] || fail "a file has no checksum"
for file in kubeqemu.yaml images/virt-components-amd64.tar; do
	cp "$file" "$work/kept"
	printf X | dd of="$file" bs=1 seek=1000 conv=notrunc status=none
	! sha256sum --quiet -c SHA256SUMS >/dev/null 2>&1 || fail "a changed byte of $file was not found"
	mv "$work/kept" "$file"
done
sha256sum --quiet -c SHA256SUMS

say "chart"
helm template kubeqemu "kubeqemu-${version#v}.tgz" >"$work/chart.yaml"
! grep -n ':dev\b' "$work/chart.yaml" || fail "the chart names an image of a checkout"
grep -q "localhost/kubeqemu/virt-components:$version" "$work/chart.yaml" ||
	fail "the chart does not name the release's images"

say "packages and SBOMs"
[ "$(dpkg-deb -f qemuargs/qemuargs_*_amd64.deb Version)" = "$(sed 's/^v//; s/-/~/' <<<"$version")" ] ||
	fail "the package has another version"
qemuargs/qemuargs-linux-amd64 --version | grep -F "$version" || fail "qemuargs has another version"
for file in sbom/*.spdx.json; do
	grep -q '"spdxVersion": "SPDX-2.3"' "$file" || fail "$file is no SBOM"
done

# command_of N prints the Nth of the four commands of INSTALL.md.
command_of() { commands INSTALL.md "Four commands" 1 | sed -n "$1p"; }
# run N runs the Nth of them.
run() { say "$(command_of "$1")"; bash -euo pipefail -c "$(command_of "$1")"; }

say "a cluster"
cluster down --name "$name" # what an earlier run that was killed left
cluster up --name "$name" --bin "$programs"
say "$(command_of 1)"
cluster enter --name "$name" -- bash -euo pipefail -c "cd $folder && PATH=$programs:\$PATH && $(command_of 1)"
run 2
kubectl apply -f samples/kubevirt-emulation.yaml # KVM may not work here
run 3
say "$(command_of 4)"
# The same command without a terminal: Enter, until the prompt comes.
console=$(command_of 4 | sed 's/ -it / -i /')
[[ $console != "$(command_of 4)" ]] || fail "the fourth command has no terminal"
(for ((i = 0; i < 300; i++)); do sleep 1; echo; done) | timeout 300 bash -c "$console" 2>/dev/null >"$work/console" &
shell=$!
for ((i = 0; i < 300; i++)); do
	! grep -q 'tiny# ' "$work/console" || break
	sleep 1
done
kill "$shell" 2>/dev/null || true
grep -a -m 1 'tiny# ' "$work/console" || {
	tail -n 20 "$work/console"
	kubectl describe vmi tiny
	fail "the guest's console shows no prompt"
}
used=$(kubectl get pods --all-namespaces -o jsonpath='{.items[*].status.containerStatuses[*].image}' | tr ' ' '\n')
grep -F "$version" <<<"$used"
! grep -vF "$version" <<<"$used" ||
	fail "a pod has an image that is not the release's"
say "$version: the guest's console shows its prompt"

say "the other sample, which has the same name"
kubectl delete -f samples/vm-tiny.yaml --timeout=2m
kubectl apply -f samples/vmi-tiny.yaml
kubectl wait --for=condition=Ready --timeout=5m vmi/tiny || {
	kubectl describe vmi
	fail "the other sample's guest does not run"
}
kubectl delete -f samples/vmi-tiny.yaml --timeout=2m

say "removing it, as INSTALL.md says"
timeout 15m bash -euo pipefail -c "$(grep '^kubectl delete ' INSTALL.md)" | tail -n 3
! kubectl get namespace kubevirt >/dev/null 2>&1 || fail "the namespace kubevirt is still there"
say "removed"
