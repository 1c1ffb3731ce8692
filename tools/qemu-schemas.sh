#!/bin/bash
# Writes the schemas that qemuargs has embedded, qemuargs/tool/schema/captures: qemu-schemas.sh FOLDER
#
# amd64's 7.2 is the QEMU of the machine, which runs Debian 12. The others come from Debian's packages, into _output/cache; they run
# in a root of their own (which needs root), and nothing is installed. arm64's are the builds for nodes of arm64, which know KVM;
# Debian's qemu-user-static runs their programs. The same package gives the same bytes.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
cache=$repo/_output/cache
target=schemas started=$SECONDS
mkdir -p "$cache"
work=$(mktemp -d "$cache/schemas.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# say prints a progress line, as config/images/build.sh does.
say() { printf '%-10s %3ds  %s\n' "$target" $((SECONDS - started)) "$*" >&2; }
. "$repo/config/images/apt.sh"

# What has devices, and the modules that a default installation has too; bookworm has them in qemu-system-common.
common='qemu-system-common qemu-system-data ipxe-qemu'
packages_amd64="qemu-system-x86 seabios $common"
packages_arm64="qemu-system-arm $common"
packages_trixie='qemu-system-modules-spice qemu-system-modules-opengl'
packages_bookworm=

# Where the packages of each release come from (apt_preferences(5)).
trixie='Package: src:qemu
Pin: version 1:10.0*
Pin-Priority: 990'
backports='Package: src:qemu src:seabios src:mesa
Pin: release n=trixie-backports
Pin-Priority: 990'

# from_debian ARCHITECTURE SUITE RELEASE PREFERENCES extracts the newest QEMU of a release, and prints the path of a script that runs it.
from_debian() {
	local debs foreign='' run='' program=/usr/bin/qemu-system-x86_64 name=qemu-system-x86 packages=packages_$1 modules=packages_$2 root=$work/$1-$3
	local -x APT_CONFIG
	if [ "$1" = arm64 ]; then foreign=arm64 run=/emulator program=/usr/bin/qemu-system-aarch64 name=qemu-system-arm; fi
	APT_CONFIG=$(apt_suite "$2" "$4" $foreign)
	debs=$(apt_resolve closure ${!packages} ${!modules})
	grep -q "^${name}_1%3a$3[.+]" <<<"$debs" || { echo "no QEMU $3 of $1 in Debian's $2 or its backports" >&2; return 1; }
	apt_fetch $debs
	say "extracting QEMU $3 of $1"
	apt_extract "$root" $debs
	# Releases before trixie have /lib as a folder of its own in the packages.
	[ -e "$root/lib" ] || ln -sfn usr/lib "$root/lib"
	[ -e "$root/lib64" ] || ln -sfn usr/lib64 "$root/lib64"
	[ -z "$run" ] || cp "$user_emulator" "$root$run"
	# In a root of its own: QEMU looks for modules in the host's folder as well, and aborts over those of another release.
	printf '#!/bin/sh\nexec chroot "%s" %s %s "$@"\n' "$root" "$run" "$program" >"$root.sh"
	chmod +x "$root.sh"
	echo "$root.sh"
}

# extract_user_emulator prints the path of a static program of the machine's that runs programs of arm64.
extract_user_emulator() {
	local debs root=$work/user
	debs=$(apt_resolve only qemu-user-static)
	apt_fetch $debs
	apt_extract "$root" $debs
	echo "$root/usr/bin/qemu-aarch64-static"
}

capture() { "$work/qemuargs" schema --qemu "$2" --output "$folder/$1.json.gz" && say "$(ls -l "$folder/$1.json.gz" | cut -d' ' -f5) bytes of QEMU $1"; }

# machine_qemu RELEASE prints the path of the machine's QEMU, which must be of the release.
machine_qemu() {
	local path version
	path=$(command -v qemu-system-x86_64) || { echo "no qemu-system-x86_64: install Debian 12's qemu-system-x86" >&2; return 1; }
	version=$("$path" --version | sed -n 1p)
	[[ $version == "QEMU emulator version $1."*"(Debian "* ]] || { echo "$path is not Debian's QEMU $1: $version" >&2; return 1; }
	echo "$path"
}

cd "$repo" && CGO_ENABLED=0 go build -trimpath -o "$work/qemuargs" ./cmd/qemuargs
# An assignment ends the script when its command fails; an argument's command does not.
qemu=$(machine_qemu 7.2)
capture x86_64-7.2 "$qemu"
qemu=$(from_debian amd64 trixie 10.0 "$trixie")
capture x86_64-10.0 "$qemu"
qemu=$(from_debian amd64 trixie 11.1 "$backports")
capture x86_64-11.1 "$qemu"
user_emulator=$(extract_user_emulator)
qemu=$(from_debian arm64 bookworm 7.2 "")
capture aarch64-7.2 "$qemu"
qemu=$(from_debian arm64 trixie 10.0 "$trixie")
capture aarch64-10.0 "$qemu"
qemu=$(from_debian arm64 trixie 11.1 "$backports")
capture aarch64-11.1 "$qemu"
