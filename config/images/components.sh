# The image of the cluster components: one static program with a name for each of them, so that their processes on a
# node share the pages of one file. Sourced by build.sh.

# static_binary NAME [PATH] prints the path of the binary to pack: the given one, or cmd/NAME built now. Without gRPC's
# traces, whose pages are html/template's, the linker leaves a fifth of virt-components away: it keeps every method of
# every type where templates could call them.
static_binary() {
	if [ -n "${2:-}" ]; then echo "$2"; return; fi
	say "compiling $1"
	local bin=$output/bin
	[ "$arch" = "$(dpkg --print-architecture)" ] || bin=$output/bin/$arch
	mkdir -p "$bin"
	# virt-launcher is in memory once for each guest, and virt-image for each container disk. Without inlined functions
	# virt-launcher is 250 KiB smaller.
	local small=()
	[[ $1 != virt-launcher && $1 != virt-image ]] || small=(-gcflags=all=-l)
	(cd "$repo" && GOARCH=$arch CGO_ENABLED=0 go build -trimpath -tags grpcnotrace "${small[@]}" -ldflags '-s -w' -o "$bin/$1" "./cmd/$1")
	echo "$bin/$1"
}

build_components() {
	local binary key component root=$work/root
	binary=$(static_binary virt-components "${VIRT_COMPONENTS:-}")
	key=$(key_of "$here/components.sh" "$repo/tools/image" "$binary" <<<"$tag $arch")
	if built virt-components "$key"; then say "up to date"; return; fi
	if LC_ALL=C grep -qa 'ld-linux' "$binary"; then echo "$binary is not static" >&2; return 1; fi
	mkdir -p "$root"/{etc,tmp,usr/bin}
	for component in virt-api virt-controller virt-handler; do ln -s virt-components "$root/usr/bin/$component"; done
	chmod 1777 "$root/tmp"
	printf '%s\n' root:x:0:0:root:/:/sbin/nologin nonroot:x:1001:1001:nonroot:/:/sbin/nologin >"$root/etc/passwd"
	printf '%s\n' root:x:0: nonroot:x:1001: >"$root/etc/group"
	pack virt-components --arch "$arch" --dir "$root" --file "$binary:/usr/bin/virt-components:0755" \
		--entrypoint /usr/bin/virt-components --user 1001:1001
	mark_built virt-components "$key"
	# There was an image of each: what is pushed and loaded is virt-*.tar.
	rm -f "$images"/virt-{api,controller,handler}.{tar,key}
	say "done: $(du -h "$images/virt-components.tar" | cut -f1)"
}
