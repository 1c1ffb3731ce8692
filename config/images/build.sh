#!/bin/bash
# Builds the container images as docker-archive tars, without a container daemon: build.sh TARGET...
#
#   tiny        localhost/kubeqemu/tiny-container-disk:dev     a guest that boots in seconds, for tests, and
#               localhost/kubeqemu/tiny-virtio-container-disk:dev   in half the time, without SATA
#   tiny-arm64  localhost/kubeqemu/tiny-arm64-container-disk:dev    the tiny guest for arm64
#   nested      localhost/kubeqemu/tiny-nested-container-disk:dev   a guest with vhost-net, in which a test runs
#   debian      localhost/kubeqemu/debian-container-disk:dev   Debian 12 with cloud-init, for the demo
#   launcher    localhost/kubeqemu/virt-launcher:dev           QEMU, firmware, virt-launcher, virt-importer and virt-image
#   launcher-arm64-emulator   localhost/kubeqemu/virt-launcher-arm64-emulator:dev   the launcher that emulates guests of arm64
#   components  localhost/kubeqemu/virt-components:dev     virt-controller, virt-api and virt-handler
#
# Each target is cached: it is built again only when its recipe, its packages or its binary changed.
# Targets may run in parallel. The host needs the packages in packages.txt.
#
#   OUTPUT          where everything goes (default <repository>/_output): images/ has the tars, cache/ the rest
#   CACHE           another folder than cache/, which images of several tags share
#   XDG_CACHE_HOME  in its folder kubeqemu, guests are kept for the user's other work trees (default ~/.cache)
#   TAG             image tag (default dev)
#   ARCH            architecture of the nodes (default amd64). With arm64, images/arm64/ has the tars of tiny, launcher and components;
#                   nothing of arm64 runs while they are made; the host needs Debian's gcc-aarch64-linux-gnu besides
#   LAUNCHER_SUITE, LAUNCHER_QEMU
#                   Debian's release whose packages the launcher's image has, and QEMU's of which the newest is taken
#   VIRT_LAUNCHER, VIRT_IMPORTER, VIRT_IMAGE, VIRT_COMPONENTS
#                   static binaries to pack (default: built from cmd/)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
output=${OUTPUT:-$repo/_output}
arch=${ARCH:-amd64}
images=$output/images$([ "$arch" = amd64 ] || echo "/$arch")
cache=${CACHE:-$output/cache}
user_cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kubeqemu
tag=${TAG:-dev}
# The one time stamp of every file made here, so that the same content gives the same image.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1735689600} TZ=UTC LC_ALL=C
umask 022

[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
# Said before anything is done: what is missing would show itself minutes later, by another name.
[ "$EUID" = 0 ] || { echo "build.sh needs root, Debian 12 or newer, and the packages in config/images/packages.txt" >&2; exit 1; }
mkdir -p "$images" "$cache"

# say prints a progress line: target, elapsed seconds, what.
say() { printf '%-10s %3ds  %s\n' "$target" $((SECONDS - started)) "$*" >&2; }

# built IMAGE KEY succeeds if the image's tar was made with this key; record it with mark_built.
built() { [ -s "$images/$1.tar" ] && [ "$(cat "$images/$1.key" 2>/dev/null)" = "$2" ]; }
mark_built() { echo "$2" >"$images/$1.key"; }

# kept IMAGE KEY is built, and takes the image over from another work tree of this user's; keep_built records it for
# them, and forgets the one before. For guests: they take a minute to make, and change with Debian's packages only.
kept() {
	local file=$user_cache/$1-$2.tar
	if ! built "$1" "$2" && [ -s "$file" ]; then
		cp "$file" "$images/$1.tar.new" && mv "$images/$1.tar.new" "$images/$1.tar" && mark_built "$1" "$2"
	fi
	built "$1" "$2"
}
keep_built() {
	mark_built "$1" "$2"
	[ "$tag" = dev ] || return 0 # a release's guests are made once, and would take the others' place
	mkdir -p "$user_cache" && rm -f "$user_cache/$1"-*.tar && cp "$images/$1.tar" "$user_cache/.$1.$$" &&
		mv "$user_cache/.$1.$$" "$user_cache/$1-$2.tar" || say "could not keep it in $user_cache for other work trees"
}

# key_of FILE-OR-FOLDER... hashes names, contents and which files are executable, wherever the work tree is; standard
# input (package names, say) is hashed as well.
key_of() {
	local path
	{
		cat
		for path in "$@"; do
			tar -C "$(dirname "$path")" --format=ustar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \
				--mode=u=rwX,go=rX --exclude='*_test.go' -cf - "$(basename "$path")"
		done
	} | sha256sum | cut -d' ' -f1
}

# pack IMAGE ARGUMENTS... runs tools/image, and reports the size of the result.
pack() {
	local name=$1
	shift
	(flock 9 && cd "$repo/tools" && go build -trimpath -o "$cache/image" ./image) 9>"$cache/image.lock"
	"$cache/image" --ref "localhost/kubeqemu/$name:$tag" --output "$images/$name.tar" "$@" >&2
}

. "$here/apt.sh"
. "$here/fat.sh"
. "$here/tiny.sh"
. "$here/tinyarm64.sh"
. "$here/debian.sh"
. "$here/launcher.sh"
. "$here/components.sh"

for target; do
	case $arch/$target in amd64/* | arm64/tiny | arm64/launcher | arm64/components) ;; *) echo "no target $target for nodes of $arch" >&2; exit 2 ;; esac
	case $target in tiny | tiny-arm64 | nested | debian | launcher | launcher-arm64-emulator | components) ;; *) echo "no target $target" >&2; exit 2 ;; esac
	started=$SECONDS
	exec {target_lock}>"$cache/$target-$arch.lock"
	flock "$target_lock"
	work=$(mktemp -d "$cache/$target.XXXXXX")
	trap 'rm -rf --one-file-system "$work"' EXIT
	if [ "$arch/$target" = arm64/tiny ]; then build_tiny-arm64; else "build_$target"; fi
	rm -rf --one-file-system "$work"
	flock -u "$target_lock"
done
