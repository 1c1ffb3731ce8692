# The images of the cluster components: one static binary each. Sourced by build.sh.

# static_binary NAME [PATH] prints the path of the binary to pack: the given one, or cmd/NAME built now. Without gRPC's
# traces, whose pages are html/template's, the linker leaves a fifth of virt-handler away: it keeps every method of
# every type where templates could call them.
static_binary() {
	if [ -n "${2:-}" ]; then echo "$2"; return; fi
	say "compiling $1"
	mkdir -p "$output/bin"
	(cd "$repo" && CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o "$output/bin/$1" "./cmd/$1")
	echo "$output/bin/$1"
}

build_components() {
	# virt-handler makes taps, mounts and device nodes on the node, so it runs as root.
	component virt-controller 1001:1001 "${VIRT_CONTROLLER:-}"
	component virt-api 1001:1001 "${VIRT_API:-}"
	component virt-handler 0:0 "${VIRT_HANDLER:-}"
}

# component NAME USER [BINARY]
component() {
	local name=$1 binary key root=$work/$1
	binary=$(static_binary "$1" "$3")
	key=$(key_of "$here/components.sh" "$repo/tools/image" "$binary" <<<"$tag")
	if built "$name" "$key"; then say "$name: up to date"; return; fi
	if LC_ALL=C grep -qa 'ld-linux' "$binary"; then echo "$binary is not static" >&2; return 1; fi
	mkdir -p "$root"/{etc,tmp}
	chmod 1777 "$root/tmp"
	printf '%s\n' root:x:0:0:root:/:/sbin/nologin nonroot:x:1001:1001:nonroot:/:/sbin/nologin >"$root/etc/passwd"
	printf '%s\n' root:x:0: nonroot:x:1001: >"$root/etc/group"
	pack "$name" --dir "$root" --file "$binary:/usr/bin/$name:0755" --entrypoint "/usr/bin/$name" --user "$2"
	mark_built "$name" "$key"
	say "$name: done, $(du -h "$images/$name.tar" | cut -f1)"
}
