#!/bin/bash
# build.sh: builds CDI and local-path-provisioner from their sources, and packs them as images into _output/images.
#
# THIRD_PARTY is a folder with two archives: containerized-data-importer.tar.xz and local-path-provisioner.tar.xz.
# This script keeps the programs that it builds in _output/third-party. CDI's images have Debian 13's nbdkit and qemu-img.
# The script also packs a web server with the tiny guest's disk.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"

cdi=$(unpack containerized-data-importer)
local_path=$(unpack local-path-provisioner)
mkdir -p "$built/bin"
# The importer's VMware source needs C. The stub for arm64 takes its place.
sed '/^\/\/go:build/d; /^\/\/ +build/d' "$cdi/pkg/importer/vddk-datasource_arm64.go" >"$built/vddk.go"
echo "{\"Replace\": {\"$cdi/pkg/importer/vddk-datasource_amd64.go\": \"$built/vddk.go\"}}" >"$built/overlay.json"
for name in operator controller apiserver uploadproxy uploadserver cloner importer; do
	program "$cdi" cdi-$name ./cmd/cdi-$name -mod=vendor -overlay "$built/overlay.json" \
		-tags containers_image_openpgp,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper
done
program "$cdi" manifest-generator ./tools/manifest-generator -mod=vendor
program "$local_path" local-path-provisioner . -mod=mod
(cd "$repo/tools" && go build -trimpath -o "$cache/image" ./image)

# The root of CDI's images: what fills disks, a shell, and cat for probes.
base=$cache/third-party-root
(
	APT_CONFIG=$(apt_suite trixie "")
	export APT_CONFIG
	debs=$(apt_resolve closure base-files bash coreutils sed grep gawk tar util-linux ca-certificates nbdkit qemu-utils)
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

bin=$built/bin
small=$(small_root)
pack cdi-operator 1001 /usr/bin/cdi-operator --dir "$small" --file "$bin/cdi-operator:/usr/bin/cdi-operator:0755"
for name in controller apiserver uploadproxy; do
	pack cdi-$name 1001 /usr/bin/cdi-$name --entrypoint -alsologtostderr --dir "$small" --file "$bin/cdi-$name:/usr/bin/cdi-$name:0755"
done
for name in importer uploadserver; do
	pack cdi-$name 1001 /usr/bin/cdi-$name --entrypoint -alsologtostderr --dir "$base" --file "$bin/cdi-$name:/usr/bin/cdi-$name:0755"
done
pack cdi-cloner 1001 /usr/bin/cloner_startup.sh --dir "$base" --file "$bin/cdi-cloner:/usr/bin/cdi-cloner:0755" \
	--file "$cdi/cmd/cdi-cloner/cloner_startup.sh:/usr/bin/cloner_startup.sh:0755"
# The same image makes folders of the node, as root.
pack local-path-provisioner 0 /usr/bin/local-path-provisioner --dir "$small" --file "$bin/local-path-provisioner:/usr/bin/local-path-provisioner:0755"

pack_web_server

image() { echo "localhost/third-party/cdi-$1:dev"; }
"$bin/manifest-generator" -resource-type=operator -resource-group=everything -operator-version=v0.0.0 -namespace=cdi \
	-pull-policy=IfNotPresent -verbosity=3 -operator-image="$(image operator)" -controller-image="$(image controller)" \
	-importer-image="$(image importer)" -cloner-image="$(image cloner)" -ovirt-populator-image="$(image importer)" \
	-apiserver-image="$(image apiserver)" -uploadserver-image="$(image uploadserver)" -uploadproxy-image="$(image uploadproxy)" >"$built/cdi-operator.yaml"
sed -E 's#image: docker.io/rancher/local-path-provisioner:.*#image: localhost/third-party/local-path-provisioner:dev#; s#image: .*busybox.*#image: localhost/third-party/local-path-provisioner:dev#;
	s#/opt/local-path-provisioner#/var/lib/local-path-provisioner#' \
	"$local_path/deploy/local-path-storage.yaml" >"$built/local-path.yaml"
say "done"
