# parts.sh: what build.sh and csi-build.sh have in common. They source it.
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

# module MODULE VERSION REPLACEMENT... prints a folder with the sources of a Go module. Each REPLACEMENT is one of go mod edit's
# flags: a module that is built itself keeps none of the replacements of its repository that lead to other folders.
module() {
	local module=$1 version=$2 folder
	shift 2
	folder=$built/$(tr / _ <<<"$module")-$version
	if [ ! -d "$folder" ]; then
		say "fetching $module"
		cp -r "$(cd "$work" && go mod download -json "$module@$version" | sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p')" "$work/module"
		chmod -R u+w "$work/module"
		[ $# = 0 ] || (cd "$work/module" && go mod edit "$@")
		mv "$work/module" "$folder"
	fi
	echo "$folder"
}

# small_root prints a folder with cat, for probes, and a shell.
small_root() {
	local small=$work/small applet deb
	if [ ! -d "$small" ]; then
		# The guests' images may come from another work tree (config/images/build.sh), and busybox with them.
		deb=$(apt_resolve only busybox-static) && apt_fetch "$deb" || return 1
		mkdir -p "$small/bin" "$small/tmp" "$small/usr/bin" && chmod 1777 "$small/tmp"
		dpkg-deb --fsys-tarfile "$cache/debs/$deb" | tar -C "$small" --wildcards -xf - './*bin/busybox' || return 1
		[ -x "$small/bin/busybox" ] || cp "$small/usr/bin/busybox" "$small/bin/busybox" || return 1
		for applet in sh cat mkdir rm chmod; do ln -sf busybox "$small/bin/$applet"; done
	fi
	echo "$small"
}

# pack_web_server packs a web server with the tiny guest's disk.
pack_web_server() {
	local small layer
	small=$(small_root)
	mkdir -p "$work/disk/www"
	tar -C "$work/disk" -xf "$images/tiny-virtio-container-disk.tar"
	for layer in "$work/disk"/*.tar.gz; do tar -C "$work/disk" -xzf "$layer" disk/tiny.qcow2; done
	mv "$work/disk/disk/tiny.qcow2" "$work/disk/www/tiny.qcow2" && chmod 644 "$work/disk/www/tiny.qcow2"
	pack web-server 1001 /bin/busybox --entrypoint httpd --entrypoint -f --entrypoint -p --entrypoint 8080 --entrypoint -h --entrypoint /www \
		--dir "$small" --file "$work/disk/www/tiny.qcow2:/www/tiny.qcow2:0644"
}
