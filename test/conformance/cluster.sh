#!/bin/bash
# cluster.sh: for each tier of KubeVirt's suite a cluster of its own, with Kubeqemu and what the suite wants besides. The tiers run beside each
# other: that of the API waits most of the time. Then the clusters end, and what the specs did is held against specs.txt.
#
#   KEEP=1   leaves the clusters as they are: KUBECONFIG=_output/cluster/conformance-TIER/kubeconfig
#   TIERS    which tiers run (default "api guests"); specs.txt is held against both alone
#   FOCUS    ginkgo's flags that choose specs of the tiers, as in '--focus-file=vnc_test'; specs.txt is not held against such a run
#
# Run it by `make conformance`, which builds what it needs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
output=$repo/_output/conformance
images=$repo/_output/images
export PATH=$output/bin:$repo/_output/bin:$PATH
started=$SECONDS
say() { printf 'conformance %4ds  %s\n' $((SECONDS - started)) "$*" >&2; }

# Two tiers of the suite run: the specs of the API, and those specs labelled conformance that need one node alone.
api=(--procs=4 --label-filter='!conformance' --focus-file='tests/(access|version|dryrun)_test.go' --focus-file='compute/subresources/(rbac|openapi|expandspec).go'
	--focus-file='infrastructure/crds.go' --focus-file='instancetype/(instancetype|upgrade).go')
guests=(--procs=2 --label-filter='conformance && !requires-two-schedulable-nodes && !storage-req && !RequiresOutsideConnectivity
	&& !RequiresBlockStorage && !RequiresSnapshotStorageClass && !disruptive')
tiers=(${TIERS:-api guests}) runs=()

# storage makes the default storage class, and volumes of it: folders of the node. The suite makes some twenty claims of 1 GiB or less.
storage() {
	local i path
	cat <<-END
		apiVersion: storage.k8s.io/v1
		kind: StorageClass
		metadata: {name: local-path, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
		provisioner: kubernetes.io/no-provisioner
		volumeBindingMode: WaitForFirstConsumer
	END
	for i in $(seq 40); do
		path=/var/lib/conformance/$i
		cluster enter --name "$1" -- install -d -m 777 "$path"
		cat <<-END
			---
			apiVersion: v1
			kind: PersistentVolume
			metadata: {name: local-$i}
			spec:
			  capacity: {storage: 2Gi}
			  accessModes: [ReadWriteOnce]
			  persistentVolumeReclaimPolicy: Retain
			  storageClassName: local-path
			  hostPath: {path: $path}
			  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]}]}}
		END
	done
}

# up brings a tier's cluster up, and ends first what an earlier run that was killed left.
up() {
	local name=conformance-$1
	export KUBECONFIG=$repo/_output/cluster/$name/kubeconfig
	cluster down --name "$name"
	cluster up --name "$name"
	cluster load-image --name "$name" "$images"/{virt-launcher,virt-components}.tar "$output"/images/*.tar
	TIMEOUT=3m OVERLAY=test/conformance/overlay "$repo/config/deploy.sh" up
	kubectl apply -f "$repo/config/samples/kubevirt-emulation.yaml" # KVM may not work here
	kubectl create -f "$output/crds.json"
	kubectl apply -f "$here/harness.yaml"
	storage "$name" | kubectl apply -f -
	kubectl -n kubevirt rollout status --timeout=3m deployment/virt-operator
}

# run runs a tier, and succeeds if it wrote a report: what failed is looked at later. Specs do not look at an interrupt, so the second
# signal kills.
run() {
	local out=$output/$1 ginkgo
	local -n chosen=$1
	export KUBECONFIG=$repo/_output/cluster/conformance-$1/kubeconfig
	rm -rf "$out" && mkdir -p "$out"
	say "$1: $out/log"
	trap 'kill -KILL -- "-$ginkgo"' TERM
	(cd "$out" && REPORTER_MAX_FAILS=0 exec setsid timeout --signal=INT --kill-after=180s 100m ginkgo "${chosen[@]}" ${FOCUS:-} --timeout=90m --no-color -v --silence-skips --grace-period=120s \
		--output-dir="$out" --json-report=report.json "$output/bin/suite.test" -- \
		-kubeconfig="$KUBECONFIG" -kubectl-path="$(command -v kubectl)" -virtctl-path="$output/bin/virtctl" \
		-installed-namespace=kubevirt -config="$here/suite.json" -artifacts="$out/artifacts" \
		-container-prefix=quay.io/kubevirt -container-tag=v1.7.0 -utility-container-prefix=quay.io/kubevirt -utility-container-tag=v1.7.0 \
		>"$out/log" 2>&1) &
	ginkgo=$!
	wait "$ginkgo" || say "$1: ginkgo ended with $?"
	[ -s "$out/report.json" ] || { tail -40 "$out/log" >&2; return 1; }
	say "$1: ended"
}

# down ends what still runs, and then every cluster, whatever became of the one before.
down() {
	local tier left=0
	for tier in "${runs[@]}"; do
		kill "$tier" 2>/dev/null && wait "$tier" || true
	done
	for tier in "${tiers[@]}"; do
		cluster down --name "conformance-$tier" || left=1
		cluster check --name "conformance-$tier" || left=1
	done
	return $left
}

# bash reads a script while it runs it, and would run a line that somebody has changed since. As a function, all of it is read first.
main() {
	[ -n "${KEEP:-}" ] || trap down EXIT
	local tier list=$here/specs.txt reports=() failed=
	for tier in "${tiers[@]}"; do
		up "$tier"
	done
	for tier in "${tiers[@]}"; do
		run "$tier" &
		runs+=($!)
		reports+=("$output/$tier/report.json")
	done
	for tier in "${runs[@]}"; do
		wait "$tier" || failed=1
	done
	runs=()
	[ -z "$failed" ] || exit 1
	[ -z "${FOCUS:-}" ] && [ "${tiers[*]}" = "api guests" ] || { list=/dev/null; say "a part of the suite ran: the list is not looked at"; }
	"$output/bin/conformance" -list "$list" "${reports[@]}"
	exit
}
main
