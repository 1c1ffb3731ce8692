#!/bin/bash
# Writes the schemas that qemuargs has embedded, qemuargs/schema/captures: qemu-schemas.sh FOLDER
#
# 7.2 is the QEMU of the machine, which runs Debian 12. The others come from Debian's packages, into _output/cache; they run
# in a root of their own (which needs root), and nothing is installed. The same package gives the same bytes.
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

# What has devices, and the modules that a default installation has too.
packages='qemu-system-x86 qemu-system-common qemu-system-data seabios ipxe-qemu qemu-system-modules-spice qemu-system-modules-opengl'

# Where the packages of each release come from (apt_preferences(5)).
trixie='Package: src:qemu
Pin: version 1:10.0*
Pin-Priority: 990'
backports='Package: src:qemu src:seabios src:mesa
Pin: release n=trixie-backports
Pin-Priority: 990'

# from_debian RELEASE PREFERENCES extracts the newest QEMU of a release, and prints the path of a script that runs it.
from_debian() {
	local debs root=$work/$1
	local -x APT_CONFIG
	APT_CONFIG=$(apt_suite trixie "$2")
	debs=$(apt_resolve closure $packages)
	grep -q "^qemu-system-x86_1%3a$1\." <<<"$debs" || { echo "no QEMU $1 in Debian's trixie or its backports" >&2; return 1; }
	apt_fetch $debs
	say "extracting QEMU $1"
	apt_extract "$root" $debs
	ln -sfn usr/lib "$root/lib" && ln -sfn usr/lib64 "$root/lib64"
	# In a root of its own: QEMU looks for modules in the host's folder as well, and aborts over those of another release.
	printf '#!/bin/sh\nexec chroot "%s" /usr/bin/qemu-system-x86_64 "$@"\n' "$root" >"$root.sh"
	chmod +x "$root.sh"
	echo "$root.sh"
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
capture 7.2 "$qemu"
qemu=$(from_debian 10.0 "$trixie")
capture 10.0 "$qemu"
qemu=$(from_debian 11.1 "$backports")
capture 11.1 "$qemu"
