#!/bin/bash
# deploy.sh up | down: installs Kubeqemu on the cluster that kubectl talks to, or removes it.
#
#   up     applies OVERLAY (default config/default) and waits until everything is up. REGISTRY and TAG say where
#          the images virt-… are; by default they are expected on the nodes under the names that
#          config/images/build.sh gives them.
#   down   removes it. It refuses while there are VMs of any kind; with FORCE=1 it ends and deletes them first.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
overlay=${OVERLAY:-config/default}
# Kinds whose objects are VMs, or make them, those first that would make others anew.
kinds=(virtualmachinepools.pool.kubevirt.io virtualmachineinstancereplicasets.kubevirt.io virtualmachines.kubevirt.io virtualmachineinstances.kubevirt.io)

say() { printf '%s\n' "$*"; }
fail() { say "deploy: $*" >&2; exit 1; }

# manifests prints what is installed, with the images' names.
manifests() {
	local default=localhost/kubeqemu
	kubectl kustomize "$repo/$overlay" |
		sed -E "s#$default/(virt-[a-z]+):dev#${REGISTRY:-$default}/\1:${TAG:-dev}#g"
}

# here prints which of the kinds the cluster knows.
here() {
	local known kind
	known=$(kubectl get customresourcedefinitions -o name)
	for kind in "${kinds[@]}"; do
		! grep -qx "customresourcedefinition.apiextensions.k8s.io/$kind" <<<"$known" || echo "$kind"
	done
}

target() {
	say "cluster: $(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}'), context $(kubectl config current-context)"
}

up() {
	target
	say "images:  ${REGISTRY:-localhost/kubeqemu}/virt-*:${TAG:-dev}"
	say "installing $overlay"
	manifests | kubectl apply -f -
	kubectl wait --for=condition=established --timeout=60s customresourcedefinition -l kubevirt.io
	local workload
	for workload in $(kubectl -n kubevirt get deployments,daemonsets -l kubevirt.io -o name); do
		kubectl -n kubevirt rollout status --timeout="${TIMEOUT:-5m}" "$workload" || {
			kubectl -n kubevirt describe pods -l kubevirt.io | tail -n 40 >&2
			fail "$workload is not up; see above"
		}
	done
	say "Kubeqemu is up. Without working KVM on the nodes, permit emulation: kubectl apply -f config/samples/kubevirt-emulation.yaml"
}

down() {
	target
	local present vms count
	present=$(here | paste -sd,)
	if [ -n "$present" ]; then
		vms=$(kubectl get "$present" --all-namespaces -o name)
		count=$(grep -c . <<<"$vms" || true)
		if [ "$count" -gt 0 ] && [ "${FORCE:-}" != 1 ]; then
			kubectl get "$present" --all-namespaces >&2
			fail "there are $count pools, VMs, ReplicaSets and instances; nothing would follow or end them any more. Delete them, or set FORCE=1 to have them ended and deleted"
		fi
		if [ "$count" -gt 0 ]; then
			say "ending and deleting $count pools, VMs, ReplicaSets and instances"
			kubectl delete "$present" --all --all-namespaces --timeout="${TIMEOUT:-5m}"
		fi
	fi
	say "removing $overlay"
	manifests | kubectl delete --ignore-not-found --wait --timeout="${TIMEOUT:-5m}" -f -
	kubectl label nodes --all kubevirt.io/schedulable- kubeqemu.io/accelerator- >/dev/null
	kubectl annotate nodes --all kubevirt.io/heartbeat- >/dev/null
	say "Kubeqemu is removed"
}

case ${1:-} in
up | down) "$1" ;;
*) sed -n '2,/^set /s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
