#!/bin/bash
# build.sh: builds CDI and local-path-provisioner from their sources, and packs them as images into _output/images.
#
# THIRD_PARTY is a folder with two archives: containerized-data-importer.tar.xz and local-path-provisioner.tar.xz.
# This script keeps the programs that it builds in _output/third-party. CDI's images have Debian 13's nbdkit and qemu-img.
# The script also packs a web server with the tiny guest's disk.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
output=$repo/_output
images=$output/images
cache=$output/cache
built=$output/third-party
target=third-party started=$SECONDS
say() { printf '%-11s %3ds  %s\n' "$target" $((SECONDS - started)) "$*" >&2; }
. "$repo/config/images/apt.sh"
umask 022
mkdir -p "$built" "$images" "$cache"
work=$(mktemp -d "$cache/$target.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# unpack NAME prints the folder with the sources of an archive.
unpack() {
	local archive=$THIRD_PARTY/$1.tar.xz sum
	[ -f "$archive" ] || { echo "THIRD_PARTY=$THIRD_PARTY has no $1.tar.xz" >&2; return 1; }
	sum=$(sha256sum "$archive" | cut -c1-16)
	if [ ! -d "$built/$1-$sum" ]; then
		say "unpacking $1"
		mkdir -p "$work/$1"
		tar -C "$work/$1" -xf "$archive"
		mv "$work/$1/$1" "$built/$1-$sum"
	fi
	echo "$built/$1-$sum"
}

# program FOLDER NAME PACKAGE FLAG... builds a program into _output/third-party/bin, unless it is there.
program() {
	local folder=$1 name=$2 package=$3
	shift 3
	[ ! -x "$built/bin/$name" ] || return 0
	say "compiling $name"
	(cd "$folder" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' "$@" -o "$built/bin/$name" "$package")
}

# pack NAME USER ENTRYPOINT ARGUMENT... packs an image.
pack() {
	local name=$1 user=$2 entrypoint=$3
	shift 3
	"$cache/image" --ref "localhost/third-party/$name:dev" --output "$images/$name.tar" --user "$user" \
		--entrypoint "$entrypoint" "$@" >&2
}

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
small=$work/small # cat, for probes, and a shell
mkdir -p "$small/bin" "$small/tmp" "$small/usr/bin" && chmod 1777 "$small/tmp"
dpkg-deb --fsys-tarfile "$cache"/debs/busybox-static_*.deb | tar -C "$small" --wildcards -xf - './*bin/busybox'
[ -x "$small/bin/busybox" ] || cp "$small/usr/bin/busybox" "$small/bin/busybox"
for applet in sh cat mkdir rm chmod; do ln -sf busybox "$small/bin/$applet"; done
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

# A web server with the tiny guest's disk.
mkdir -p "$work/disk/www"
tar -C "$work/disk" -xf "$images/tiny-virtio-container-disk.tar"
for layer in "$work/disk"/*.tar.gz; do tar -C "$work/disk" -xzf "$layer" disk/tiny.qcow2; done
mv "$work/disk/disk/tiny.qcow2" "$work/disk/www/tiny.qcow2" && chmod 644 "$work/disk/www/tiny.qcow2"
pack web-server 1001 /bin/busybox --entrypoint httpd --entrypoint -f --entrypoint -p --entrypoint 8080 --entrypoint -h --entrypoint /www \
	--dir "$small" --file "$work/disk/www/tiny.qcow2:/www/tiny.qcow2:0644"

image() { echo "localhost/third-party/cdi-$1:dev"; }
"$bin/manifest-generator" -resource-type=operator -resource-group=everything -operator-version=v0.0.0 -namespace=cdi \
	-pull-policy=IfNotPresent -verbosity=3 -operator-image="$(image operator)" -controller-image="$(image controller)" \
	-importer-image="$(image importer)" -cloner-image="$(image cloner)" -ovirt-populator-image="$(image importer)" \
	-apiserver-image="$(image apiserver)" -uploadserver-image="$(image uploadserver)" -uploadproxy-image="$(image uploadproxy)" >"$built/cdi-operator.yaml"
sed -E 's#image: docker.io/rancher/local-path-provisioner:.*#image: localhost/third-party/local-path-provisioner:dev#; s#image: .*busybox.*#image: localhost/third-party/local-path-provisioner:dev#;
	s#/opt/local-path-provisioner#/var/lib/local-path-provisioner#' \
	"$local_path/deploy/local-path-storage.yaml" >"$built/local-path.yaml"
say "done"
