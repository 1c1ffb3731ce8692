#!/bin/bash
# `make demo`: from a clone to a Debian guest's login prompt on a real
# one-machine Kubernetes. What can run side by side does.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo"
bin=$repo/_output/bin
images=$repo/_output/images
sample=config/samples/vmi-debian.yaml
export PATH=$bin:$PATH
mkdir -p "$bin"

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
labelled() { sed -u "s/^/  $1 | /"; }
fail() { say "failed: $*"; exit 1; }

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
cluster up --name demo 2>&1 | labelled "cluster    "
export KUBECONFIG=$repo/_output/cluster/demo/kubeconfig
cluster load-image --name demo "$images"/{virt-launcher,virt-components,{debian,tiny,tiny-virtio}-container-disk}.tar 2>&1 | labelled "images     "

say "installing Kubeqemu: kubectl apply -k config/default"
kubectl apply -k config/default | labelled "kubectl    "
kubectl wait --for=condition=established --timeout=30s crd/kubevirts.kubevirt.io | labelled "kubectl    "
kubectl apply -f config/samples/kubevirt-emulation.yaml | labelled "kubectl    " # KVM may not work here
# Images of the same tag may be new ones.
kubectl -n kubevirt rollout restart deployment/virt-controller deployment/virt-api daemonset/virt-handler >/dev/null
kubectl -n kubevirt rollout status --timeout=2m deployment/virt-controller | labelled "kubectl    "
kubectl -n kubevirt rollout status --timeout=2m deployment/virt-api | labelled "kubectl    "
kubectl -n kubevirt rollout status --timeout=2m daemonset/virt-handler | labelled "kubectl    "
kubectl -n kubevirt logs daemonset/virt-handler 2>/dev/null | grep -oE '"msg":"guests (are emulated|run under)[^"]*","reason":"[^"]*"' | labelled "node       " || true

say "starting a VM: kubectl apply -f $sample"
kubectl delete --ignore-not-found --wait -f "$sample" | labelled "kubectl    "
kubectl apply -f "$sample" | labelled "kubectl    "
kubectl wait --for=jsonpath='{.status.phase}'=Running --timeout=2m vmi/debian | labelled "kubectl    " ||
	{ kubectl describe vmi debian; fail "the VM did not start"; }
pod=$(kubectl get pods -l kubevirt.io=virt-launcher,vmi.kubevirt.io/id=debian --field-selector=status.phase=Running -o name | head -n 1)

say "the guest boots, emulated: about a minute to its login prompt; its serial console:"
deadline=$((SECONDS + 600))
# Not its pod's log: that has whole lines only, and the prompt is none.
coproc console { exec kubectl exec -i "$pod" -- virt-launcher console 2>/dev/null; }
attached=$console_PID
trap 'kill "$attached" 2>/dev/null || true' EXIT
line=
until [[ $line == *" login: " ]]; do
	# Character by character: the prompt does not end its line.
	if IFS= read -r -N 1 -t 5 -u "${console[0]}" c; then
		printf '%s' "$c"
		line+=$c
		[[ $c == $'\n' ]] && line=
	elif ! kill -0 "$attached" 2>/dev/null || ((SECONDS > deadline)); then
		kubectl describe vmi debian
		fail "the guest did not reach its login prompt"
	fi
done
printf '\x1d' >&"${console[1]}" # Ctrl+] detaches
wait "$attached" 2>/dev/null || true
trap - EXIT
printf '\n\n'
say "the guest is up"
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
