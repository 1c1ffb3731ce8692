#!/bin/bash
# csi-build.sh: builds a CSI driver with snapshots, and what Kubernetes needs beside it, from their sources, and packs
# them as one image into _output/images.
#
# THIRD_PARTY is a folder with csi-driver-host-path.tar.xz. The other sources are Go modules.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"

kubernetes=v0.36.3
driver=$(unpack csi-driver-host-path)
provisioner=$(module github.com/kubernetes-csi/external-provisioner/v5 v5.3.0)
replacements=(-dropreplace=github.com/kubernetes-csi/external-snapshotter/client/v8)
for name in api apimachinery client-go apiserver component-base component-helpers; do replacements+=(-replace="k8s.io/$name=k8s.io/$name@$kubernetes"); done
snapshotter=$(module github.com/kubernetes-csi/external-snapshotter/v8 v8.6.0 "${replacements[@]}")
mkdir -p "$built/bin"
program "$driver" hostpathplugin ./cmd/hostpathplugin -mod=mod -ldflags '-s -w -X main.version=dev' # without a version it answers nothing
program "$provisioner" csi-provisioner ./cmd/csi-provisioner -mod=mod
for name in csi-snapshotter snapshot-controller; do program "$snapshotter" $name ./cmd/$name -mod=mod; done
# The repository's own: it may have changed since the last build.
(cd "$repo" && CGO_ENABLED=0 go build -trimpath -o "$built/bin/csi-registrar" ./test/thirdparty/registrar)
(cd "$repo/tools" && go build -trimpath -o "$cache/image" ./image)

# The driver's image has what the driver runs: mount, losetup, cp, and tar, which runs gzip by sh. Its other containers have the same.
base=$cache/csi-root
(
	APT_CONFIG=$(apt_suite trixie "")
	export APT_CONFIG
	debs=$(apt_resolve closure base-files bash dash coreutils tar gzip util-linux mount)
	key=$(sha256sum <<<"$debs" | cut -d' ' -f1)
	[ "$(cat "$base.key" 2>/dev/null)" != "$key" ] || exit 0
	apt_fetch $debs
	say "extracting $(wc -w <<<"$debs") packages"
	rm -rf --one-file-system "$base"
	apt_extract "$work/root" $debs
	mkdir -p "$work/root"/{tmp,run,proc,sys,dev} && chmod 1777 "$work/root/tmp"
	rm -rf "$work/root"/usr/share/{doc,man,locale,info}
	mv "$work/root" "$base" && echo "$key" >"$base.key"
)
files=()
for name in hostpathplugin csi-provisioner csi-snapshotter snapshot-controller csi-registrar; do files+=(--file "$built/bin/$name:/usr/bin/$name:0755"); done
pack csi 0 /usr/bin/hostpathplugin --dir "$base" "${files[@]}"
pack_web_server

# The kinds of snapshots.
crds=$(module github.com/kubernetes-csi/external-snapshotter/client/v8 v8.4.0)/config/crd
rm -rf "$built/snapshot-kinds" && mkdir -p "$built/snapshot-kinds"
for plural in volumesnapshots volumesnapshotcontents volumesnapshotclasses; do cp "$crds/snapshot.storage.k8s.io_$plural.yaml" "$built/snapshot-kinds"; done
say "done"
