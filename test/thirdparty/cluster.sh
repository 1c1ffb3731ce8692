#!/bin/bash
# cluster.sh: a cluster of its own with Kubeqemu, CDI and local-path-provisioner, the tests of this folder on it, and its end.
# KEEP=1 leaves the cluster as it is.
# Run it by `make third-party`, which builds what it needs.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=third-party
images=$repo/_output/images
built=$repo/_output/third-party
export PATH=$repo/_output/bin:$PATH KUBECONFIG=$repo/_output/cluster/$name/kubeconfig

[ -n "${KEEP:-}" ] || trap 'cluster down --name "$name"; cluster check --name "$name"' EXIT
cluster down --name "$name" # what an earlier run that was killed left
cluster up --name "$name"
cluster load-image --name "$name" "$images"/{virt-launcher,virt-components,local-path-provisioner,web-server}.tar "$images"/cdi-*.tar
TIMEOUT=2m "$repo/config/deploy.sh" up
kubectl apply -f "$repo/config/samples/kubevirt-emulation.yaml" # KVM may not work here
kubectl apply -f "$built/local-path.yaml"
kubectl create namespace cdi
kubectl apply -f "$built/cdi-operator.yaml"
kubectl -n cdi rollout status deployment/cdi-operator --timeout=3m
kubectl apply -f "$repo/test/thirdparty/cdi.yaml"
kubectl wait cdi/cdi --for=condition=Available --timeout=5m
kubectl -n local-path-storage rollout status deployment/local-path-provisioner --timeout=2m
cd "$repo"
go test -count=1 -tags long -timeout 30m -v ./test/thirdparty
