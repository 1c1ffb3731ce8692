#!/bin/bash
# `make demo`: from a clone to a Debian guest's login prompt on a real
# one-machine Kubernetes. What can run side by side does.
# `make demo NODES=2`: the same on two nodes, and a guest that counts moves from one to the other.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo"
bin=$repo/_output/bin
images=$repo/_output/images
sample=config/samples/vmi-debian.yaml
nodes=${NODES:-1}
patience=20m # of what takes seconds on a quiet machine
export PATH=$bin:$PATH
mkdir -p "$bin"

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
labelled() { sed -u "s/^/  $1 | /"; }
fail() { say "failed: $*"; exit 1; }
[[ $nodes =~ ^[1-4]$ ]] || fail "NODES is \"$nodes\"; it may be 1 to 4"

say "building: Kubernetes and containerd from source (about 8 minutes the first time), and images"
# The guests' images are made by waiting for packages and disk, Kubernetes by the compiler.
(config/images/build.sh debian tiny 2>&1 | labelled "guest images") &
guest=$!
trap 'kill "$guest" 2>/dev/null || true' EXIT
(cd test/cluster && go build -o "$bin/cluster" ./cmd/cluster)
cluster build 2>&1 | labelled "cluster    "
config/images/build.sh launcher components 2>&1 | labelled "images     "
wait "$guest" || fail "the guests' images could not be built"
trap - EXIT

say "starting Kubernetes"
cluster up --name demo --nodes "$nodes" 2>&1 | labelled "cluster    "
export KUBECONFIG=$repo/_output/cluster/demo/kubeconfig
cluster load-image --name demo "$images"/{virt-launcher,virt-components,{debian,tiny,tiny-virtio}-container-disk}.tar 2>&1 | labelled "images     "

say "installing Kubeqemu: kubectl apply -k config/default"
kubectl apply -k config/default | labelled "kubectl    "
kubectl wait --for=condition=established --timeout=$patience crd/kubevirts.kubevirt.io | labelled "kubectl    "
kubectl apply -f config/samples/kubevirt-emulation.yaml | labelled "kubectl    " # KVM may not work here
# Images of the same tag may be new ones.
kubectl -n kubevirt rollout restart deployment/virt-controller deployment/virt-api daemonset/virt-handler >/dev/null
kubectl -n kubevirt rollout status --timeout=$patience deployment/virt-controller | labelled "kubectl    "
kubectl -n kubevirt rollout status --timeout=$patience deployment/virt-api | labelled "kubectl    "
kubectl -n kubevirt rollout status --timeout=$patience daemonset/virt-handler | labelled "kubectl    "
kubectl -n kubevirt logs daemonset/virt-handler 2>/dev/null | grep -oE '"msg":"guests (are emulated|run under)[^"]*","reason":"[^"]*"' | labelled "node       " || true

say "starting a VM: kubectl apply -f $sample"
kubectl delete --ignore-not-found --wait -f "$sample" | labelled "kubectl    "
kubectl apply -f "$sample" | labelled "kubectl    "
kubectl wait --for=jsonpath='{.status.phase}'=Running --timeout=$patience vmi/debian | labelled "kubectl    " ||
	{ kubectl describe vmi debian; fail "the VM did not start"; }
pod=$(kubectl get pods -l kubevirt.io=virt-launcher,vmi.kubevirt.io/id=debian --field-selector=status.phase=Running -o name | head -n 1)

# attach attaches to the serial console of the guest in a pod. Its pod's log has whole lines only, and a prompt is none.
attach() {
	coproc console { exec kubectl exec -i "$1" -- virt-launcher console 2>/dev/null; }
	attached=$console_PID
	# Bash takes its own descriptors away when the console ends.
	exec {from}<&"${console[0]}" {to}>&"${console[1]}"
	trap 'kill "$attached" 2>/dev/null || true' EXIT
}

# types writes to the console. A console that has ended would end Bash itself (SIGPIPE), so a child writes.
types() { (printf '%s' "$1" >&"$to") 2>/dev/null; }

# shows prints what the console says until a line ends with the text. While the console is silent, it types the second argument.
# A busy machine boots slowly: shows gives up when no further line has come for ten minutes, or after two hours.
shows() {
	local text=$1 silent=${2-} line= c last=$SECONDS end=$((SECONDS + 7200))
	until [[ $line == *"$text" ]]; do
		((SECONDS < last + 600 && SECONDS < end)) || return 1
		# Character by character: the prompt does not end its line.
		if IFS= read -r -N 1 -t 5 -u "$from" c; then
			printf '%s' "$c"
			line+=$c
			[[ $c == $'\n' ]] && line= last=$SECONDS
		else
			kill -0 "$attached" 2>/dev/null || return 1
			types "$silent" || return 1
		fi
	done
	return 0
}

detach() {
	types $'\x1d' || true # Ctrl+]
	timeout 5 tail --pid="$attached" -f /dev/null || kill "$attached" 2>/dev/null || true
	wait "$attached" 2>/dev/null || true
	exec {from}<&- {to}>&-
	trap - EXIT
}

say "the guest boots, emulated: about a minute to its login prompt; its serial console:"
attach "$pod"
shows " login: " || { kubectl describe vmi debian; fail "the guest did not reach its login prompt"; }
detach
printf '\n\n'
say "the guest is up"

# moves has a guest count, moves it to another node, and shows what it counted there, and for how long it stood still.
moves() {
	local manifest source target before after name state='{.status.migrationState'
	manifest=$(sed 's/\btiny$/counter/' config/samples/vm-tiny.yaml)
	say "another guest, which counts, moves to another node"
	kubectl delete --ignore-not-found --wait vm/counter | labelled "kubectl    "
	kubectl apply -f - <<<"$manifest" | labelled "kubectl    "
	kubectl wait --for=condition=Ready --timeout=$patience vm/counter | labelled "kubectl    " || { kubectl describe vmi counter; fail "the VM did not start"; }
	before=$(kubectl get vmi counter -o 'jsonpath={.status.launcherPods[0].name}')
	attach "$before"
	shows "tiny# " $'\n' >/dev/null || fail "the guest did not reach its prompt"
	types 'i=0; while :; do i=$((i+1)); echo counted to $i; usleep 50000; done'$'\n' || true
	shows "counted to 20" >/dev/null || fail "the guest does not count"
	detach
	name=$(kubectl create -o name -f - <<<'{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": {"generateName": "demo-"}, "spec": {"vmiName": "counter"}}')
	say "$name"
	kubectl wait --for=jsonpath="$state.completed}"=true --timeout=$patience "$name" | labelled "kubectl    " || { kubectl describe "$name"; fail "the migration did not end"; }
	[ "$(kubectl get "$name" -o 'jsonpath={.status.phase}')" = Succeeded ] || { kubectl describe "$name"; fail "the guest did not move"; }
	source=$(kubectl get vmi counter -o "jsonpath=$state.sourceNode}") target=$(kubectl get vmi counter -o "jsonpath=$state.targetNode}")
	after=$(kubectl get vmi counter -o "jsonpath=$state.targetPod}")
	attach "$after"
	shows "counted to" >/dev/null || fail "the guest does not count on"
	detach
	kubectl logs "$before" | sed -n '/^counted to/p' | tail -n 2 | labelled "$source     "
	kubectl logs "$after" | sed -n '/^counted to/{p;n;p;:end;n;b end}' | labelled "$target     "
	say "the guest stood still for $(kubectl get vmi counter -o "jsonpath=$state.sourceState.progress.downtimeMilliseconds}") ms, as QEMU measured"
}
if ((nodes > 1)); then moves; fi
kubectl get vmi -o wide
cat <<END

To go on:
  export KUBECONFIG=$KUBECONFIG PATH=$bin:\$PATH
  kubectl get vmi -o wide
  kubectl describe vmi debian
  kubectl exec -it $pod -- virt-launcher console    # user demo, password demo; leave with Ctrl+]
  kubectl delete vmi debian
  kubectl apply -f config/samples/vmi-tiny.yaml    # and the other samples
To end everything, with nothing left behind:
  make down
END
