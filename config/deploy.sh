#!/bin/bash
# deploy.sh up | down: installs Kubeqemu on the cluster that kubectl talks to, or removes it.
#
#   up     applies OVERLAY (default config/default) and waits until everything is up. REGISTRY and TAG say where
#          the images virt-… are; by default they are expected on the nodes under the names that
#          config/images/build.sh gives them.
#   down   removes it. It refuses while there are VMs of any kind; with FORCE=1 it ends and deletes them first.
#          It refuses while there are DataVolumes that CDI does not fill; with FORCE=1 it leaves them. Their
#          kinds always stay.
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

# cdi_kinds are the kinds of config/datavolumes. They outlive an installation: with them would go every
# DataVolume, its claim and its disk.
cdi_kinds=(datavolumes.cdi.kubevirt.io datasources.cdi.kubevirt.io)

# without_cdi_kinds leaves those kinds out of manifests.
without_cdi_kinds() {
	awk 'BEGIN { RS = "\n---\n"; ORS = "\n---\n" } !(/(^|\n)kind: CustomResourceDefinition\n/ && /\n  name: data(volumes|sources)\.cdi\.kubevirt\.io\n/)'
}

# upload_service is the APIService of uploads. CDI has one of the same name.
upload_service=v1beta1.upload.cdi.kubevirt.io

# without_cdis_service leaves that APIService out of manifests if it is CDI's.
without_cdis_service() {
	if [ -n "$(kubectl get apiservice "$upload_service" --ignore-not-found -o 'jsonpath={.spec.service.name}' | grep -vx virt-api)" ]; then
		awk 'BEGIN { RS = "\n---\n"; ORS = "\n---\n" } !(/(^|\n)kind: APIService\n/ && /\n  name: v1beta1\.upload\.cdi\.kubevirt\.io\n/)'
	else
		cat
	fi
}

# remove_stray_service deletes that APIService if an earlier installation left it, which OVERLAY does not have. It leads
# to virt-api, which does not serve it any more. Kubernetes cannot discover its kinds then, and until it can, it
# finishes the deletion of no namespace.
remove_stray_service() {
	local service
	service=$(kubectl get apiservice "$upload_service" --ignore-not-found -o 'jsonpath={.spec.service.namespace}/{.spec.service.name}')
	[ "$service" = kubevirt/virt-api ] || return 0
	! manifests | grep -x "  name: $upload_service" >/dev/null || return 0
	say "removing the APIService of uploads, which $overlay does not have"
	kubectl delete apiservice "$upload_service" --ignore-not-found
}

# cdi_kinds_with prints which of those kinds the cluster has whose labels match a selector.
cdi_kinds_with() {
	kubectl get customresourcedefinitions --selector "$1" -o name | sed 's#.*/##' | grep -xF "$(printf '%s\n' "${cdi_kinds[@]}")" || true
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

# refuse_kubevirt ends if KubeVirt itself runs on the cluster. Only its operator leaves the finalizer and the label: a Deployment named
# virt-operator, or a KubeVirt object that somebody applied, is no sign.
refuse_kubevirt() {
	local left
	left=$(kubectl get customresourcedefinitions --selector app.kubernetes.io/managed-by=virt-operator -o name | sed 's#.*/##' | grep -xF virtualmachines.kubevirt.io || true)
	if [ -n "$(kubectl get customresourcedefinition kubevirts.kubevirt.io --ignore-not-found -o name)" ]; then
		left+=$(kubectl get kubevirts.kubevirt.io --all-namespaces -o 'jsonpath={range .items[*]} {.metadata.namespace}/{.metadata.name}={.metadata.finalizers}{end}' |
			tr ' ' '\n' | grep foregroundDeleteKubeVirt || true)
	fi
	[ -z "$left" ] || fail "KubeVirt runs here, and an installation would take it over ($left). Remove KubeVirt first: delete its KubeVirt object, and then its operator. If it is gone, take away what is left of it: the label app.kubernetes.io/managed-by=virt-operator of the definition virtualmachines.kubevirt.io, the finalizer foregroundDeleteKubeVirt of the KubeVirt object"
}

up() {
	target
	refuse_kubevirt
	say "images:  ${REGISTRY:-localhost/kubeqemu}/virt-*:${TAG:-dev}"
	say "installing $overlay"
	remove_stray_service
	if [ -n "$(cdi_kinds_with 'app.kubernetes.io/managed-by!=kubeqemu')" ]; then
		say "the cluster's DataVolumes are CDI's; their kinds stay as they are"
		manifests | without_cdi_kinds | without_cdis_service | kubectl apply -f -
	else
		manifests | without_cdis_service | kubectl apply -f -
	fi
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

# refuse_disks ends if nothing would fill, or delete the disks of, DataVolumes any more.
refuse_disks() {
	local volumes
	grep -qxF "${cdi_kinds[0]}" <<<"$(cdi_kinds_with app.kubernetes.io/managed-by=kubeqemu)" || return 0
	volumes=$(kubectl get "${cdi_kinds[0]}" --all-namespaces -o name)
	[ -n "$volumes" ] || return 0
	kubectl get "${cdi_kinds[0]}" --all-namespaces >&2
	[ "${FORCE:-}" = 1 ] || fail "there are DataVolumes, which nothing would fill any more. Delete them, and with them their disks, or set FORCE=1 to leave them and their disks as they are"
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
	refuse_disks
	say "removing $overlay"
	remove_stray_service
	manifests | without_cdi_kinds | without_cdis_service | kubectl delete --ignore-not-found --wait --timeout="${TIMEOUT:-5m}" -f -
	local labels
	labels=$(kubectl get nodes -o 'jsonpath={.items[*].metadata.labels}' | cpu_labels)
	kubectl label nodes --all kubevirt.io/schedulable- kubeqemu.io/accelerator- kubevirt.io/cpumanager- cpumanager- $labels >/dev/null
	kubectl annotate nodes --all kubevirt.io/heartbeat- >/dev/null
	say "Kubeqemu is removed"
}

# cpu_labels reads nodes' labels, and writes those of CPUs for `kubectl label` to remove; nothing if there are none.
cpu_labels() {
	{ grep -oE '"(cpu-model|cpu-model-migration|cpu-feature|host-model-cpu|host-model-required-features|cpu-vendor|hyperv|cpu-timer|scheduling)\.node\.kubevirt\.io/[^"]+"' || true; } |
		tr -d '"' | sort -u | sed 's/$/-/'
}

case ${1:-} in
up | down) "$1" ;;
*) sed -n '2,/^set /s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
