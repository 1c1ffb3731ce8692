#!/bin/bash
# csi.sh: a cluster of its own with Kubeqemu, which fills DataVolumes, and a CSI driver with snapshots, the tests of csi_test.go on it,
# and its end. KEEP=1 leaves the cluster as it is.
# Run it by `make third-party`, which builds what it needs.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=third-party-csi
images=$repo/_output/images
built=$repo/_output/third-party
export PATH=$repo/_output/bin:$PATH KUBECONFIG=$repo/_output/cluster/$name/kubeconfig

[ -n "${KEEP:-}" ] || trap 'cluster down --name "$name"; cluster check --name "$name"' EXIT
cluster down --name "$name" # what an earlier run that was killed left
cluster up --name "$name"
cluster load-image --name "$name" "$images"/{virt-launcher,virt-components,csi,web-server}.tar
kubectl apply -f "$built/snapshot-kinds"
kubectl wait --for=condition=established --timeout=1m -f "$built/snapshot-kinds"
kubectl apply -f "$repo/test/thirdparty/csi.yaml"
OVERLAY=config/datavolumes TIMEOUT=2m "$repo/config/deploy.sh" up
kubectl apply -f "$repo/config/samples/kubevirt-emulation.yaml" # KVM may not work here
kubectl -n csi rollout status deployment/csi --timeout=3m
cd "$repo"
go test -count=1 -tags long,csi -run TestCSI -timeout 30m -v ./test/thirdparty
