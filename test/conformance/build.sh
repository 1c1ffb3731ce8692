#!/bin/bash
# build.sh: KubeVirt's suite and what runs it, into _output/conformance. The first time it compiles KubeVirt, for 6 minutes of CPU time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
bin=$repo/_output/conformance/bin
mkdir -p "$bin"
(cd "$repo" && go build -o "$bin/conformance" ./test/conformance)
cd "$here/suite"
version=$(go list -m -f '{{.Version}}' kubevirt.io/kubevirt)
go build -o "$bin/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
go build -ldflags "-s -w -X kubevirt.io/client-go/version.gitVersion=$version" -o "$bin/virtctl" kubevirt.io/kubevirt/cmd/virtctl
go run ./crds >"$bin/../crds.json"
go test -c -vet=off -ldflags '-s -w' -o "$bin/suite.test" kubevirt.io/kubevirt/tests
