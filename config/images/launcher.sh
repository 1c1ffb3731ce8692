# The launcher image: QEMU with the libraries, modules and firmware it uses, swtpm, virtiofsd, passt, virt-launcher, virt-importer, virt-image, and nothing else.
# Sourced by build.sh. The host stays what it is: QEMU of a newer Debian runs with that one's libraries.

# The release of Debian, and the release of QEMU of which its newest package is taken. Not 10.0, trixie's own: that gives
# every virtqueue 1024 entries whatever it is told, and its guests cannot migrate to any later QEMU. trixie's own passt
# loses what comes to a guest that has ended its side of a TCP connection.
launcher_suite=${LAUNCHER_SUITE:-trixie}
launcher_qemu=${LAUNCHER_QEMU:-11.1}
launcher_preferences="Package: src:qemu
Pin: version 1:$launcher_qemu*
Pin-Priority: 990

Package: src:seabios
Pin: release n=$launcher_suite-backports
Pin-Priority: 990

Package: src:passt
Pin: release n=$launcher_suite-backports
Pin-Priority: 990"

launcher_packages='qemu-system-common qemu-system-data qemu-utils swtpm virtiofsd passt ca-certificates'
launcher_amd64_packages='qemu-system-x86 seabios ovmf ipxe-qemu'
launcher_arm64_packages='qemu-system-arm qemu-efi-aarch64'

# Besides QEMU. virt-importer runs qemu-img, and so does who looks at a guest's disks: no launcher does.
launcher_programs='/usr/bin/qemu-img /usr/bin/swtpm /usr/libexec/virtiofsd /usr/bin/passt'

# Libraries that a program finds in a folder of its own.
launcher_private='swtpm/libswtpm_libtpms.so.0'

# What QEMU loads with dlopen: virtio's own display; virtio-vga is only there for amd64. No GTK, SDL, audio, Spice, OpenGL, network block drivers.
launcher_modules='hw-display-virtio-gpu hw-display-virtio-gpu-pci'
launcher_amd64_modules='hw-display-virtio-vga'
launcher_arm64_modules=

# Libraries that QEMU is linked with, and calls nothing of in a machine of ours: a disassembler, persistent memory, RDMA,
# SASL for VNC, VDE, FUSE exports, eBPF for RSS, D-Bus, udev, user networking, and TLS (no key comes into a tenant's pod).
# With what they depend on, OpenSSL above all, they cost each VM 2.5 MB of relocated pages and the image 25 MB.
# launcher_stubs makes others in their place.
launcher_stubbed='libcapstone.so.5 libpmem.so.1 librdmacm.so.1 libibverbs.so.1 libsasl2.so.2 libvdeplug.so.2 libfuse3.so.4
	libbpf.so.1 libgio-2.0.so.0 libudev.so.1 libslirp.so.0 libgnutls.so.30'

# Firmware of the machine type q35: the BIOS, UEFI with secure boot and without, option ROMs of displays, boot helpers for -kernel, network boot
# for the models that KubeVirt knows, and a keymap for VNC.
launcher_amd64_firmware='/usr/share/seabios/bios-256k.bin /usr/share/seabios/vgabios-*.bin /usr/share/qemu/kvmvapic.bin
	/usr/share/qemu/linuxboot_dma.bin /usr/share/qemu/multiboot_dma.bin /usr/share/qemu/pvh.bin
	/usr/share/qemu/efi-virtio.rom /usr/share/qemu/efi-e1000.rom /usr/share/qemu/efi-e1000e.rom /usr/share/qemu/efi-rtl8139.rom
	/usr/share/qemu/pxe-virtio.rom /usr/share/qemu/pxe-e1000.rom
	/usr/share/OVMF/OVMF_CODE_4M.fd /usr/share/OVMF/OVMF_VARS_4M.fd
	/usr/share/OVMF/OVMF_CODE_4M.secboot.fd /usr/share/OVMF/OVMF_VARS_4M.ms.fd
	/usr/share/qemu/keymaps/en-us'

# Firmware of the machine type virt. launcher_aavmf adds UEFI.
launcher_arm64_firmware='/usr/share/qemu/keymaps/en-us'

build_launcher() { launcher_image virt-launcher "$arch"; }

# The launcher for nodes of amd64 that emulates guests of arm64. It is an image of its own: in the launcher's image, its QEMU
# would cost every node 10 MB that few nodes need.
build_launcher-arm64-emulator() { launcher_image virt-launcher-arm64-emulator arm64; }

# launcher_image IMAGE GUEST makes the launcher, for nodes of $arch, of guests of the architecture GUEST.
launcher_image() {
	local image=$1 guest=$2 debs key base binary importer server triplet cross= packages qemu
	base=$cache/${image/#virt-launcher/launcher}-root$([ "$arch" = amd64 ] || echo "-$arch")
	triplet=$(launcher_triplet "$arch")
	[ "$arch" = "$(dpkg --print-architecture)" ] || cross=$triplet-
	packages=launcher_${guest}_packages
	qemu=$([ "$guest" = amd64 ] && echo qemu-system-x86 || echo qemu-system-arm)
	binary=$(static_binary virt-launcher "${VIRT_LAUNCHER:-}")
	importer=$(static_binary virt-importer "${VIRT_IMPORTER:-}")
	server=$(static_binary virt-image "${VIRT_IMAGE:-}")
	local -x APT_CONFIG
	APT_CONFIG=$(apt_suite "$launcher_suite" "$launcher_preferences" $(apt_foreign))
	debs=$(apt_resolve closure $launcher_packages ${!packages})
	grep -q "^${qemu}_1%3a$launcher_qemu\." <<<"$debs" || {
		echo "no QEMU $launcher_qemu in Debian's $launcher_suite or its backports, but $(grep "^${qemu}_" <<<"$debs")" >&2
		return 1
	}
	key=$(key_of "$here/launcher.sh" <<<"$debs $arch $guest")
	if [ "$(cat "$base.key" 2>/dev/null)" != "$key" ]; then
		apt_fetch $debs
		say "extracting $(wc -w <<<"$debs") packages"
		apt_extract "$work/debs" $debs
		launcher_root "$work/debs" "$work/root"
		rm -rf --one-file-system "$base"
		mv "$work/root" "$base"
		echo "$key" >"$base.key"
	fi
	key=$(key_of "$binary" "$importer" "$server" "$repo/tools/image" <<<"$key $tag")
	if built "$image" "$key"; then say "up to date"; return; fi
	pack "$image" --arch "$arch" --dir "$base" --file "$binary:/usr/bin/virt-launcher:0755" --file "$importer:/usr/bin/virt-importer:0755" \
		--file "$server:/usr/bin/virt-image:0755" \
		--entrypoint /usr/bin/virt-launcher --user 107:107
	mark_built "$image" "$key"
	say "done: $(du -h "$images/$image.tar" | cut -f1)"
}

# launcher_triplet ARCHITECTURE prints GNU's name of it.
launcher_triplet() { [ "$1" = amd64 ] && echo x86_64-linux-gnu || echo aarch64-linux-gnu; }

# launcher_loader prints the path of the dynamic loader that programs of $arch name.
launcher_loader() { [ "$arch" = amd64 ] && echo usr/lib64/ld-linux-x86-64.so.2 || echo usr/lib/ld-linux-aarch64.so.1; }

# launcher_root DEBS ROOT copies what is needed out of the extracted packages.
launcher_root() {
	local debs=$1 root=$2 lib=usr/lib/$triplet file name libraries
	local modules=launcher_${guest}_modules firmware=launcher_${guest}_firmware loader program=/usr/bin/qemu-system-x86_64
	loader=$(launcher_loader)
	[ "$guest" = amd64 ] || program=/usr/bin/qemu-system-aarch64
	mkdir -p "$root"/{usr/bin,$lib/qemu,usr/lib64,etc,proc,sys,dev,run,tmp,var,usr/share/kubeqemu}
	chmod 1777 "$root/tmp"
	ln -s usr/lib "$root/lib"
	ln -s usr/lib64 "$root/lib64"
	ln -s ../run "$root/var/run"
	printf '%s\n' root:x:0:0:root:/:/sbin/nologin qemu:x:107:107:qemu:/:/sbin/nologin >"$root/etc/passwd"
	printf '%s\n' root:x:0: qemu:x:107: >"$root/etc/group"
	printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$root/etc/nsswitch.conf"
	for file in "$program" $launcher_programs; do launcher_copy "$debs$file" "$root$file"; done
	for name in $launcher_private; do launcher_copy "$debs/$lib/$name" "$root/$lib/$name"; done
	for name in $launcher_modules ${!modules}; do launcher_copy "$debs/$lib/qemu/$name.so" "$root/$lib/qemu/$name.so"; done
	for file in $(cd "$debs" && printf '%s\n' $(printf '.%s\n' ${!firmware}) | sort -u); do
		launcher_copy "$debs/$file" "$root/$file"
	done
	[ "$guest" = amd64 ] || launcher_aavmf "$debs" "$root"
	launcher_authorities "$debs" "$root/etc/ssl/certs/ca-certificates.crt"
	launcher_stubs "$debs/$lib" "$root/$lib" "$root"/usr/bin/* "$root"/usr/libexec/* "$root/$lib"/qemu/*.so
	libraries=$(launcher_libraries "$debs/$lib" "$root/$lib:$root/$lib/swtpm" "$root"/usr/bin/* "$root"/usr/libexec/* "$root/$lib"/qemu/*.so)
	for file in $libraries; do
		case $file in "$root"/*) ;; *) launcher_copy "$file" "$root/$lib/${file##*/}" ;; esac
	done
	launcher_copy "$debs/$lib/${loader##*/}" "$root/$loader"
	chmod -R u=rwX,go=rX "$root" && chmod 1777 "$root/tmp"
	launcher_packages_of "$debs" >"$root/usr/share/kubeqemu/packages.txt"
	# What QEMU would say, so that no launcher has to ask it.
	sed -nE "s/^$qemu 1:([0-9.]+)\\+.*/\\1/p" "$root/usr/share/kubeqemu/packages.txt" >"$root/usr/share/kubeqemu/qemu-version"
	say "root file system: $(du -sh "$root" | cut -f1), $(wc -l <"$root/usr/share/kubeqemu/packages.txt") packages"
}

# launcher_copy SOURCE TARGET copies a file, following links inside the extracted packages, and notes where it was.
launcher_copy() {
	local source
	source=$(readlink -e "$1") || { echo "no file $1 in the packages" >&2; return 1; }
	case $source in "$work/debs"/*) ;; *) echo "$1 leads out of the packages, to $source" >&2; return 1 ;; esac
	install -D -m "$([ -x "$source" ] && echo 755 || echo 644)" "$source" "$2"
	echo ".${source#"$work/debs"}" >>"$work/copied"
}

# launcher_aavmf DEBS ROOT adds UEFI for arm64. Each of its files fills a flash chip of 64 MiB, mostly with zeros. QEMU reads the whole of a raw
# file into memory, and of a qcow2 file what is there. The variables are copied by virt-launcher, which adds the zeros.
launcher_aavmf() {
	local code=$1/usr/share/AAVMF/AAVMF_CODE.fd variables=$1/usr/share/AAVMF/AAVMF_VARS.fd folder=$2/usr/share/AAVMF
	mkdir -p "$folder"
	qemu-img convert -f raw -O qcow2 "$code" "$folder/AAVMF_CODE.qcow2"
	head -c $((768 << 10)) "$variables" >"$folder/AAVMF_VARS.fd"
	cmp -s <(tail -c +$(((768 << 10) + 1)) "$variables") <(head -c $(((64 << 20) - (768 << 10))) /dev/zero) ||
		{ echo "the variables' template has more than 768 KiB" >&2; return 1; }
	echo "./usr/share/AAVMF/$(basename "$(readlink -e "$code")")" >>"$work/copied"
	echo ./usr/share/AAVMF/AAVMF_VARS.fd >>"$work/copied"
}

# launcher_authorities DEBS FILE writes Mozilla's authorities into one file, as the package's own script would on a machine:
# virt-importer fetches disks from https servers.
launcher_authorities() {
	local file
	install -d "${2%/*}"
	for file in "$1"/usr/share/ca-certificates/mozilla/*.crt; do
		cat "$file"
		echo ".${file#"$1"}" >>"$work/copied"
	done >"$2"
}

# launcher_stubs FROM INTO ELF... makes, instead of the libraries in FROM, one with all that the files want of them: QEMU
# starts, and would be killed if it called anything. It does call GnuTLS: to begin with, and for random numbers, which are
# the kernel's here; and it may ask for a disassembler, of which there is none.
launcher_stubs() {
	local from=$1 into=$2 library symbol node stub=libkubeqemu-stubs.so
	shift 2
	${cross}nm -D --undefined-only "$@" | awk 'NF == 2 {print $2}' | sort -u >"$work/undefined"
	for library in $launcher_stubbed; do
		${cross}nm -D --defined-only "$from/$library" | awk '{sub(/@@/, "@", $3); print $3}' | sort -u | comm -12 - "$work/undefined"
		ln -s $stub "$into/$library"
	done >"$work/stubs"
	while IFS=@ read -r symbol _; do
		case $symbol in
		cs_open) echo 'int cs_open(void) { return 2; } /* CS_ERR_ARCH */' ;;
		gnutls_global_init) echo 'int gnutls_global_init(void) { return 0; }' ;;
		gnutls_rnd)
			cat <<-'C'
				long getrandom(void *, unsigned long, unsigned);
				int gnutls_rnd(int level, char *into, unsigned long left)
				{
					while (left > 0) {
						long got = getrandom(into, left < 256 ? left : 256, 0); /* so many are never cut short */
						if (got <= 0)
							return -1;
						into += got, left -= got;
					}
					return 0;
				}
			C
			;;
		*) echo "void $symbol(void) { __builtin_trap(); }" ;;
		esac
	done <"$work/stubs" >"$work/stubs.c"
	for node in $(sed -n 's/.*@//p' "$work/stubs" | sort -u); do
		echo "$node { global: $(sed -n "s/@$node\$/;/p" "$work/stubs" | tr -d '\n') };"
	done >"$work/stubs.map"
	${cross}gcc -shared -fPIC -O2 -nostdlib -s -fno-builtin -Wl,-z,noseparate-code,-z,relro,-z,now,--build-id=none \
		-Wl,-soname,$stub,--version-script="$work/stubs.map" -o "$into/$stub" "$work/stubs.c"
	chmod 644 "$into/$stub"
}

# launcher_libraries FROM ROOT ELF... prints the libraries that the files need, those in ROOT and others in FROM, by the
# packages' own dynamic loader, which looks nowhere else. Every symbol must be there.
launcher_libraries() {
	local from=$1 root=$2 file
	shift 2
	[ -z "$cross" ] || { launcher_foreign_libraries "$from" "$root" "$@"; return; }
	for file in "$@"; do
		LD_WARN=yes LD_BIND_NOW=yes "$from/ld-linux-x86-64.so.2" --inhibit-cache --list --library-path "$root:$from" "$file" 2>&1 ||
			{ echo "cannot resolve the libraries of $file" >&2; return 1; }
	done >"$work/libraries"
	if grep -E 'not found|undefined symbol|no version information' "$work/libraries" >&2; then return 1; fi
	awk '$2 == "=>" && $1 !~ /ld-linux/ {print $3}' "$work/libraries" | sort -u
}

# launcher_foreign_libraries FROM ROOT ELF... is launcher_libraries for another architecture, whose dynamic loader does not run here: it follows
# what the files need by their tables.
launcher_foreign_libraries() {
	local from=$1 root=$2
	shift 2
	(cd "$repo/tools" && go run ./elfneeds -path "$root:$from" "$@") >"$work/libraries" || return 1
	grep -v '/ld-linux' "$work/libraries" | sort -u
}

# launcher_packages_of DEBS prints name, version and architecture of the packages that a copied file came from.
launcher_packages_of() {
	apt_names $(sort -u "$work/copied" | awk 'NR == FNR {want[$1]; next} $2 in want {print $1}' - "$1.list")
}
