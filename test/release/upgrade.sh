#!/bin/bash
# upgrade.sh upgrades a cluster of its own, without a registry, from the release before to one of the commit that is
# checked out, and goes back, under guests that run. It does so from the releases' folders alone, by the commands of
# INSTALL.md, and prints how long each command takes. `make release-upgrade` builds what it needs.
#
#   VERSION          of the release (default v0.0.1-upgrade)
#   RELEASE          a release's folder that was built before; nothing is built then
#   BEFORE           the commit of the release before
#   BEFORE_RELEASE   a folder of the release before; nothing is built then
#
# The release before has no INSTALL.md: its folder has what the commands need, and they are the later release's.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=${CLUSTER:-upgrade}
. "$repo/test/release/common.sh"
before=${BEFORE:-1b2f0c8351818235e6c54171383d8ec49a6454af}
old_version=v0.0.0-before
patience=5m # of what takes seconds

work=$(mktemp -d)
clean() {
	local status=$?
	rm -f "$work/starting"
	cluster down --name "$name" || status=1
	cluster check --name "$name" || status=1
	rm -rf --one-file-system "$work"
	exit "$status"
}
trap clean EXIT

# build_before builds the folder of the release before, of what a cluster needs: images, manifests and samples.
build_before() {
	local source=$work/source folder=$work/$old_version image file
	git clone -q --no-tags "$repo" "$source"
	git -C "$source" checkout -q --detach "$before" ||
		fail "there is no commit $before; a clone without its history (git fetch --unshallow) cannot be tested"
	# What both have in common, QEMU and its libraries, is not made twice.
	mkdir -p "$source/_output/cache" "$folder"/{images,samples}
	for file in "$repo"/_output/cache/{launcher-root,launcher-root.key,debs}; do
		[ ! -e "$file" ] || cp -a "$file" "$source/_output/cache/"
	done
	XDG_CACHE_HOME=$work/cache TAG=$old_version "$source/config/images/build.sh" launcher components tiny
	for image in virt-launcher virt-components tiny-container-disk; do
		mv "$source/_output/images/$image.tar" "$folder/images/$image-amd64.tar"
	done
	kubectl kustomize "$source/config/default" | with_old_version >"$folder/kubeqemu.yaml"
	for file in vm-tiny.yaml vmi-tiny.yaml kubevirt-emulation.yaml; do
		with_old_version <"$source/config/samples/$file" >"$folder/samples/$file"
	done
	rm -rf --one-file-system "$source" "$work/cache"
}
with_old_version() { sed -E "s#(localhost/kubeqemu/[a-z0-9-]+):dev\b#\1:$old_version#g"; }

# add_objects gives the later release objects that the release before does not know.
add_objects() {
	cat >>"$new/kubeqemu.yaml" <<-END
		---
		{apiVersion: v1, kind: ConfigMap, metadata: {name: later, namespace: kubevirt}}
		---
		apiVersion: apiextensions.k8s.io/v1
		kind: CustomResourceDefinition
		metadata: {name: laters.later.test, labels: {kubevirt.io: ""}}
		spec:
		  group: later.test
		  scope: Namespaced
		  names: {kind: Later, plural: laters}
		  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
		---
		apiVersion: admissionregistration.k8s.io/v1
		kind: ValidatingAdmissionPolicy
		metadata: {name: later}
		spec:
		  matchConstraints:
		    resourceRules: [{apiGroups: [later.test], apiVersions: ["*"], operations: ["*"], resources: [laters]}]
		  validations: [{expression: "true"}]
	END
}
has_later() { kubectl -n kubevirt get "$1" --ignore-not-found -o name | grep -q .; }

# on_node NODE FOLDER COMMANDS runs commands in a folder on a node, as root.
on_node() {
	cluster enter --name "$name" --node "$1" -- bash -euc "cd '$2' && PATH='$repo/_output/bin':\$PATH && $3"
}
# import_images FOLDER NODE... imports a release's images on nodes, as INSTALL.md says.
import_images() {
	local folder=$1 began=$SECONDS node text
	shift
	text=$(commands "$new/INSTALL.md" Upgrade 1)
	for node; do
		on_node "$node" "$folder" "$text" >"$work/import" 2>&1 || fail "import on node $node: $(cat "$work/import")"
	done
	say "images of $(basename "$folder") on $# nodes: $((SECONDS - began))s"
}

# run FOLDER SECTION N runs the Nth block of commands of a section in a release's folder, and prints when each began.
run() {
	local text status=0
	text=$(commands "$new/INSTALL.md" "$2" "$3") || return
	say "$2: in $(basename "$1")"
	(cd "$1" && timeout "${limit:-10m}" bash -euc "PS4='  [+\${SECONDS}s] '; set -x; $text" 2>&1 |
		grep -vE 'serverside-applied$|^Waiting for') || status=$?
	say "$2: ended with $status"
	return "$status"
}
# delete_rest FOLDER OTHER deletes what another release has alone, as INSTALL.md says.
delete_rest() {
	local text
	text=$(commands "$new/INSTALL.md" Upgrade 3)
	(cd "$1" && OTHER=$2 bash -euc "$text" 2>&1 | sed 's/^/  /')
}
# install FOLDER applies all of a release at once, as INSTALL.md says for an installation.
install() {
	local text
	text=$(commands "$new/INSTALL.md" "Four commands" 1 | sed -n 2p)
	say "$text"
	(cd "$1" && bash -euc "$text" >/dev/null)
	kubectl -n kubevirt rollout status --timeout=$patience daemonset/virt-handler | tail -n 1
}

# guest FOLDER NAME [LINE...] prints a VMI of a release's samples, with lines more in its spec.
guest() {
	local folder=$1 name=$2
	shift 2
	sed "s/^  name: tiny$/  name: $name/" "$folder/samples/vmi-tiny.yaml"
	[ $# = 0 ] || printf '  %s\n' "$@"
}
# vm FOLDER NAME prints a VM of a release's samples.
vm() { sed -E "s/^(  name| +kubevirt.io\/vm): tiny$/\1: $2/" "$1/samples/vm-tiny.yaml"; }

# ready VMI waits until a guest is Ready.
ready() {
	kubectl wait --for=condition=Ready --timeout=$patience vmi "$1" >/dev/null && return
	kubectl describe vmi "$1"
	fail "$1 is not Ready"
}
# eventually COMMAND... waits until a command succeeds, for a minute.
eventually() {
	local end=$((SECONDS + 60))
	until "$@"; do
		((SECONDS < end)) || return 1
		sleep 1
	done
}
# pod_of VMI prints the guest's pod. After a migration, two of them run for a moment.
pod_of() {
	local try pods
	for ((try = 0; try < 60; try++)); do
		pods=$(kubectl get pods -l "kubevirt.io=virt-launcher,vmi.kubevirt.io/id=$1" \
			--field-selector=status.phase=Running -o name)
		[ "$(grep -c . <<<"$pods")" != 1 ] || break
		sleep 1
	done
	printf '%s\n' "$pods"
}

# process_of VMI prints the process ID of the guest's QEMU and when that began. There is exactly one.
process_of() {
	local uuid pid found=()
	uuid=$(kubectl get vmi "$1" -o 'jsonpath={.spec.domain.firmware.uuid}')
	[ -n "$uuid" ] || fail "$1 has no UUID"
	for pid in $(grep -lzxF -e "$uuid" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do
		[[ $(cat "/proc/$pid/comm" 2>/dev/null) = qemu-system* ]] || continue
		found+=("$pid $(awk '{print $22}' "/proc/$pid/stat")")
	done
	[ ${#found[@]} = 1 ] || fail "$1 has ${#found[@]} QEMUs: ${found[*]}"
	printf '%s\n' "${found[0]}"
}
facts_of() {
	kubectl get vmi "$1" -o 'jsonpath={.metadata.uid} {.status.phase} '
	process_of "$1"
}

asked=0
# types VMI LINE ANSWER types a line into the guest's console until the console shows the answer.
types() {
	local pod try found end=$((SECONDS + 300))
	pod=$(pod_of "$1")
	while ((SECONDS < end)); do
		# The programs before grep end when they write to it in vain.
		found=$( (for ((try = 0; try < 12; try++)); do printf '\n%s\n' "$2"; sleep 2; done) 2>/dev/null |
			timeout 26 kubectl exec -i "$pod" -- virt-launcher console 2>/dev/null | grep -acF -m 1 -e "$3" || true)
		[ "$found" != 1 ] || return 0
	done
	kubectl logs "$pod" --tail=20 || true
	fail "the console of $1 does not answer \"$2\" with $3"
}

# keep VMI... remembers guests that must not stop, and has each keep a word in its memory.
keep() {
	local guest
	for guest; do
		ready "$guest"
		asked=$((asked + 1))
		types "$guest" "echo word-of-$guest >/word; sed s/^/wrote-$asked-/ /word" "wrote-$asked-word-of-$guest"
		facts_of "$guest" >"$work/guests/$guest"
	done
}
# kept fails if one of these guests stopped, or is another, or does not answer.
kept() {
	local file guest now
	for file in "$work"/guests/*; do
		guest=$(basename "$file")
		ready "$guest"
		now=$(facts_of "$guest")
		[ "$now" = "$(cat "$file")" ] || fail "$1: $guest was $(cat "$file"), and is $now"
		asked=$((asked + 1))
		types "$guest" "sed s/^/read-$asked-/ /word" "read-$asked-word-of-$guest"
	done
	say "$1: guests run on, with the same QEMUs, and answer: $(cd "$work/guests" && echo *)"
}

# start_some FOLDER makes VMIs while the file starting is there, and notes each that is refused. A VMI is not started
# twice: one that meets a component that cannot read what another wrote fails.
start_some() {
	local i
	for ((i = 0; ; i++)); do
		guest "$1" "during-$i" 'startStrategy: Paused' | timeout 30 kubectl apply -f - >/dev/null 2>"$work/refusal" ||
			{ echo "during-$i: $(cat "$work/refusal")" >>"$work/refused"; }
		sleep 2
		[ -e "$work/starting" ] || break
	done
}
# under FOLDER COMMAND... runs a command while VMIs of a release's sample start, and looks whether all came up.
under() {
	local folder=$1 names
	shift
	: >"$work/refused" >"$work/starting"
	start_some "$folder" &
	"$@"
	rm "$work/starting"
	wait
	[ ! -s "$work/refused" ] || fail "VMIs were refused: $(cat "$work/refused")"
	mapfile -t names < <(kubectl get vmi -o name | grep /during-)
	[ ${#names[@]} -gt 1 ] || fail "no VMIs were made meanwhile"
	kubectl wait --for=jsonpath='{.status.phase}'=Running --timeout=$patience "${names[@]}" >/dev/null ||
		{ kubectl describe "${names[@]}" | tail -n 60; fail "a VMI that was made meanwhile does not run"; }
	say "${#names[@]} VMIs that were made meanwhile run"
	kubectl delete "${names[@]}" >/dev/null
}

# images prints the images of all components.
images() {
	kubectl -n kubevirt get pods -l 'kubevirt.io in (virt-api,virt-controller,virt-handler)' \
		-o 'jsonpath={range .items[*]}{.spec.containers[*].image}{"\n"}{end}' | sort -u
}
all_are() { [ "$(images)" = "$1" ]; }
# components_are VERSION fails unless all components are of that version, and none of them has crashed.
components_are() {
	local restarts
	eventually all_are "localhost/kubeqemu/virt-components:$1" || fail "the components are of $(images), not of $1"
	restarts=$(kubectl -n kubevirt get pods -o 'jsonpath={.items[*].status.containerStatuses[*].restartCount}' |
		tr -d ' 0')
	[ -z "$restarts" ] || { kubectl -n kubevirt get pods; fail "a component of $1 has crashed"; }
}

# ask KIND VMI VERB asks virt-api for something, as virtctl does.
ask() {
	echo '{}' >"$work/body"
	kubectl replace --raw "/apis/subresources.kubevirt.io/v1/namespaces/default/$1/$2/$3" -f "$work/body" >/dev/null
}
runs() { ! kubectl get vmi "$1" -o 'jsonpath={.status.conditions[?(@.type=="Paused")].status}' | grep -q True; }
# obeys VM: the guest is paused, goes on, and is started anew, stopped and started.
obeys() {
	local uid
	uid=$(kubectl get vmi "$1" -o 'jsonpath={.metadata.uid}')
	ask virtualmachineinstances "$1" pause
	kubectl wait --for=condition=Paused --timeout=1m "vmi/$1" >/dev/null
	ask virtualmachineinstances "$1" unpause
	eventually runs "$1" || fail "$1 stays paused"
	ask virtualmachines "$1" restart
	kubectl wait --for=jsonpath='{.status.printableStatus}'=Running --timeout=$patience "vm/$1" >/dev/null
	another "$1" "$uid"
	ask virtualmachines "$1" stop
	kubectl wait --for=jsonpath='{.status.printableStatus}'=Stopped --timeout=$patience "vm/$1" >/dev/null
	ask virtualmachines "$1" start
	kubectl wait --for=condition=Ready --timeout=$patience "vm/$1" >/dev/null
	keep "$1"
	say "$1 was paused, restarted, stopped and started"
}
# another VM UID waits until the VM has another VMI, which is Ready.
another() {
	local end=$((SECONDS + 300)) now
	while now=$(kubectl get vmi "$1" --ignore-not-found -o 'jsonpath={.metadata.uid}'); do
		[ -z "$now" ] || [ "$now" = "$2" ] || break
		((SECONDS < end)) || fail "$1 is not started anew"
		sleep 1
	done
	ready "$1"
}

# migrate VMI has a guest moved, and prints how the migration ended.
migrate() {
	local migration
	migration=$(kubectl create -o name -f - <<<'{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
		"metadata": {"generateName": "upgrade-"}, "spec": {"vmiName": "'"$1"'"}}')
	ended() { kubectl get "$migration" -o 'jsonpath={.status.phase}' | grep -qxE 'Succeeded|Failed'; }
	eventually ended || { kubectl describe "$migration" "vmi/$1" >&2; fail "the migration of $1 does not end"; }
	kubectl get "$migration" -o 'jsonpath={.status.phase} {.status.migrationState.failureReason}'
}
# tries_to_move VMI has a guest moved that a release may not be able to move: then it runs on where it is.
tries_to_move() {
	local how
	how=$(migrate "$1")
	say "the migration of $1: $how"
	[[ $how != Succeeded* ]] || facts_of "$1" >"$work/guests/$1"
}
# moves VMI VERSION moves a guest to the other node. The launcher there is of that version.
moves() {
	local how image
	how=$(migrate "$1")
	[[ $how = Succeeded* ]] || fail "the migration of $1: $how"
	image=$(kubectl get "$(pod_of "$1")" -o 'jsonpath={.spec.containers[0].image}')
	[ "$image" = "localhost/kubeqemu/virt-launcher:$2" ] || fail "$1 moved to $image"
	asked=$((asked + 1))
	types "$1" "sed s/^/moved-$asked-/ /word" "moved-$asked-word-of-$1"
	facts_of "$1" >"$work/guests/$1"
	say "$1 moved to a launcher of $2"
}

# placed VM: a field of the later release in the VM's status says on which node the guest is.
placed() {
	local place
	place=$(kubectl get vm "$1" -o 'jsonpath={.status.guest.nodeName}')
	[ -n "$place" ] && [ "$place" = "$(kubectl get vmi "$1" -o 'jsonpath={.status.nodeName}')" ]
}
# flagged reports whether virt-controller has the flag that the test adds by hand.
flagged() {
	kubectl -n kubevirt get deployment virt-controller -o 'jsonpath={.spec.template.spec.containers[0].args}' |
		grep -q labels-sync
}

# outdated VMI... fails unless exactly these guests, of all, are marked as having a launcher of another release.
outdated() {
	local want
	want=$(printf '%s\n' "$@")
	marked() { [ "$(kubectl get vmi -l kubevirt.io/outdatedLauncherImage -o name | cut -d/ -f2 | sort)" = "$want" ]; }
	eventually marked && return
	kubectl get vmi --show-labels
	fail "other guests than $* have a launcher of another release"
}

# patch_handlers STRATEGY changes how virt-handlers are replaced.
patch_handlers() {
	kubectl -n kubevirt patch daemonset virt-handler --type=merge --patch '{"spec":{"updateStrategy":'"$1"'}}' >/dev/null
}
# handler_on NODE prints the name and image of a node's virt-handler, and whether it is ready.
handler_on() {
	kubectl -n kubevirt get pods -l kubevirt.io=virt-handler --field-selector="spec.nodeName=$1" \
		-o 'jsonpath={range .items[*]}{.metadata.name} {.spec.containers[*].image} {.status.containerStatuses[*].ready}
{end}'
}
handler_is() { [[ $(handler_on "$1") = virt-handler-*" localhost/kubeqemu/virt-components:$2 true" ]]; }

mkdir "$work/guests"
if [ -n "${RELEASE:-}" ]; then
	new=$work/$(basename "$RELEASE")
	cp -r "$RELEASE" "$new"
else
	version=${VERSION:-v0.0.1-upgrade}
	ARCHES=amd64 "$repo/config/release.sh" "$version"
	new=$work/$version
	mv "$repo/_output/release/$version" "$new"
fi
new_version=$(basename "$new")
if [ -n "${BEFORE_RELEASE:-}" ]; then
	cp -r "$BEFORE_RELEASE" "$work/$old_version"
else
	say "the release before: $before"
	build_before
fi
old=$work/$old_version
add_objects

say "a cluster of two nodes"
cluster down --name "$name" # what an earlier run that was killed left
cluster up --name "$name" --nodes 2
mapfile -t nodes < <(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' | sort)
[ ${#nodes[@]} = 2 ] || fail "the cluster has ${#nodes[@]} nodes"

say "installing the release before"
import_images "$old" 1 2
install "$old"
kubectl apply -f "$old/samples/kubevirt-emulation.yaml" >/dev/null # KVM may not work here
components_are "$old_version"

say "guests of the release before"
vm "$old" tiny | kubectl apply -f - >/dev/null
vm "$old" mover | kubectl apply -f - >/dev/null
guest "$old" second "nodeSelector: {kubernetes.io/hostname: ${nodes[1]}}" | kubectl apply -f - >/dev/null
image=localhost/kubeqemu/tiny-container-disk:$old_version
kernel="{image: $image, kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}"
kernel="{kernelBoot: {container: $kernel, kernelArgs: console=ttyS0 quiet no_timer_check}}"
guest "$old" kernel "nodeSelector: {kubernetes.io/hostname: ${nodes[0]}}" |
	sed "s#^  domain:#&\n    firmware: $kernel#" | kubectl apply -f - >/dev/null
for guest in tiny mover second kernel; do
	kubectl wait --for=create --timeout=1m "vmi/$guest" >/dev/null
done
keep tiny mover second kernel

say "an upgrade that breaks off: the second node lacks the images"
import_images "$new" 1
! limit=60s run "$new" Upgrade 2 || fail "virt-handler of a node without images is rolled out"
kubectl -n kubevirt get pods -o wide
deployed=$(kubectl -n kubevirt get deployments \
	-o 'jsonpath={range .items[*]}{.spec.template.spec.containers[0].image}{"\n"}{end}' | sort -u)
[ "$deployed" = "localhost/kubeqemu/virt-components:$old_version" ] ||
	fail "virt-controller and virt-api do not wait for virt-handler: $deployed"
kubectl -n kubevirt get pods -l kubevirt.io=virt-handler \
	-o 'jsonpath={.items[*].status.initContainerStatuses[*].state.waiting.reason}' |
	grep -E 'ImagePull|ErrImage' || fail "no virt-handler waits for its image"
guest "$old" first-meanwhile "nodeSelector: {kubernetes.io/hostname: ${nodes[0]}}" | kubectl apply -f - >/dev/null
guest "$old" second-meanwhile "nodeSelector: {kubernetes.io/hostname: ${nodes[1]}}" | kubectl apply -f - >/dev/null
keep first-meanwhile
kept "an upgrade that broke off"
phase=$(kubectl get vmi second-meanwhile -o 'jsonpath={.status.phase}')
reason=$(kubectl get vmi second-meanwhile \
	-o 'jsonpath={range .status.conditions[?(@.status=="False")]}{.type}: {.reason}: {.message}{"\n"}{end}')
[[ $phase != Failed && $phase != Running && -n $reason ]] || fail "the guest on the second node is $phase: $reason"
say "the guest on the second node waits ($phase):"$'\n'"$reason"

say "back from there"
import_images "$old" 1 2
under "$old" run "$old" "Back to the release before" 1
components_are "$old_version"
keep second-meanwhile
kept "back from an upgrade that broke off"
has_later configmap/later || fail "the later release's ConfigMap is not there"
delete_rest "$old" "$new"
! has_later configmap/later && ! has_later validatingadmissionpolicy/later ||
	fail "what the later release has alone is still there"
has_later crd/laters.later.test || fail "the later release's definition is gone"
kubectl delete vmi first-meanwhile second-meanwhile >/dev/null
rm "$work"/guests/*-meanwhile

say "a change by hand, and a kubectl that is killed"
kubectl -n kubevirt patch deployment virt-controller --type=json --patch \
	'[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--additional-launcher-labels-sync=tier"}]'
flagged || fail "virt-controller has no flag"
kubectl -n kubevirt rollout status --timeout=$patience deployment/virt-controller | tail -n 1
! kubectl apply --server-side --dry-run=server -f "$new/kubeqemu.yaml" -l kubevirt.io=virt-controller \
	>"$work/conflict" 2>&1 || fail "a change by hand is no conflict"
grep -i conflict "$work/conflict" | head -n 1
import_images "$new" 1 2
# kubectl ends when it writes in vain: after some of the definitions.
! (cd "$new" && kubectl apply --server-side --force-conflicts -f kubeqemu.yaml 2>&1 | head -n 9 >/dev/null) ||
	fail "kubectl did not break off"
! has_later configmap/later || fail "kubectl broke off too late"
kept "kubectl was killed"

say "half of the nodes have the later virt-handler: a guest moves there and back"
patch_handlers '{"type":"OnDelete","rollingUpdate":null}'
kubectl apply --server-side --force-conflicts -f "$new/kubeqemu.yaml" \
	-l 'kubevirt.io notin (virt-controller,virt-api,virt-api-aggregator)' >/dev/null
kubectl -n kubevirt delete pod "$(handler_on "${nodes[0]}" | cut -d' ' -f1)" >/dev/null
eventually handler_is "${nodes[0]}" "$new_version" || fail "the first node does not have the later virt-handler"
handler_is "${nodes[1]}" "$old_version" || fail "both nodes have the later virt-handler"
moves mover "$old_version"
moves mover "$old_version"
kubectl apply --server-side --force-conflicts -f "$old/kubeqemu.yaml" -l kubevirt.io=virt-handler >/dev/null
patch_handlers '{"type":"RollingUpdate"}'
kubectl -n kubevirt rollout status --timeout=$patience daemonset/virt-handler | tail -n 1
components_are "$old_version"

say "the upgrade"
under "$old" run "$new" Upgrade 2
components_are "$new_version"
! flagged || fail "the flag is still there"
kept "upgraded"
outdated kernel mover second tiny
has_later crd/laters.later.test && has_later configmap/later || fail "what is new is not there"
delete_rest "$new" "$old"
has_later configmap/later || fail "what is new was deleted"
eventually placed tiny || fail "the VM's status has no field of the later release"
moves mover "$new_version"

say "guests of the later release, and one whose disk a container hands out"
kubectl -n kubevirt patch kubevirt kubevirt --type=merge --patch \
	'{"spec":{"configuration":{"developerConfiguration":{"disabledFeatureGates":["ImageVolume"]}}}}' >/dev/null
sleep 3 # until virt-controller has heard of it
vm "$new" later | kubectl apply -f - >/dev/null
vm "$new" handed | kubectl apply -f - >/dev/null
for guest in later handed; do kubectl wait --for=create --timeout=1m "vmi/$guest" >/dev/null; done
keep later handed
kubectl get "$(pod_of handed)" -o 'jsonpath={.spec.initContainers[*].command}' | grep -q serve-image ||
	fail "no container hands a disk out"
outdated kernel second tiny

say "back"
import_images "$old" 1 2
under "$old" run "$old" "Back to the release before" 1
delete_rest "$old" "$new"
components_are "$old_version"
kept "back"
outdated handed later mover
! has_later configmap/later || fail "what the later release has alone is still there"
[ -z "$(kubectl get crd virtualmachines.kubevirt.io \
	-o 'jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.status.properties.guest}')" ] ||
	fail "the definitions are not the older ones"
obeys later
tries_to_move handed
kept "after a migration that the older release cannot do"
obeys handed
moves mover "$old_version"

say "forward again, all at once, as for an installation"
import_images "$new" 1 2
install "$new"
components_are "$new_version"
kept "forward again"
# The release before left that field as it was, while it moved the guest.
eventually placed mover || fail "the VM's status does not say where the guest is"
obeys later
obeys tiny
say "$old_version to $new_version and back: no guest stopped"
