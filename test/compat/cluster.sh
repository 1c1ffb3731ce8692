#!/bin/bash
# cluster.sh [FOLDER [FLAG...]]: the tests of a folder (default test/compat) against a cluster of their own, which is taken
# down again. The flags are for the tests.
#
# CLUSTER is the cluster's name (default compat). Run it by `make compat-e2e` or `make virtctl`, which build what it needs.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=${CLUSTER:-compat}
images=$repo/_output/images
export CLUSTER=$name PATH=$repo/_output/bin:$PATH KUBECONFIG=$repo/_output/cluster/$name/kubeconfig

trap 'cluster down --name "$name"; cluster check --name "$name"' EXIT
cluster down --name "$name" # what an earlier run that was killed left
cluster up --name "$name"
cluster load-image --name "$name" "$images"/{virt-launcher,virt-components,tiny-virtio-container-disk,debian-container-disk}.tar
TIMEOUT=2m "$repo/config/deploy.sh" up
kubectl apply -f "$repo/config/samples/kubevirt-emulation.yaml" # KVM may not work here
cd "$repo/${1:-test/compat}"
go test -count=1 -timeout 40m -v ./... "${@:2}"
