#!/bin/sh
# Asks a libvirtd of its own for the arguments of domains. Runs as root in new namespaces of
# PIDs, mounts and the network: what it starts ends with it, and it changes nothing outside.
#
#   unshare --pid --fork --kill-child --mount --net libvirt.sh FOLDER
#
# FOLDER/NAME.xml is a domain. FOLDER/NAME.argv gets its arguments, a NUL after each;
# FOLDER/NAME.error what libvirt said instead.
set -eu
folder=$1
home=/run/h # short: sockets below it have paths of 107 bytes at most
user=65534 # nobody; KubeVirt runs libvirt unprivileged too

# FOLDER stays writable, and what is mounted below.
mount --bind "$folder" "$folder"
mount -o remount,bind,ro /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/kubeqemu "$home"
chown $user /run/kubeqemu # libvirt makes sockets in it
ip link set lo up

# The devices as virt-handler hands them to KubeVirt's launcher. libvirt only opens
# /dev/vhost-net, so it can be another null: not each machine that runs this has the device.
mkdir "$folder/dev"
mount -t tmpfs -o mode=755,dev tmpfs "$folder/dev"
mkdir "$folder/dev/net"
for device in null zero random urandom kvm net/tun; do
	if [ -c "/dev/$device" ]; then
		cp -a "/dev/$device" "$folder/dev/$device"
		chown $user "$folder/dev/$device"
	fi
done
mknod -m 666 "$folder/dev/vhost-net" c 1 3
mount --bind "$folder/dev" /dev

# libvirt looks for the disks of a domain that it starts.
while read -r file; do
	mkdir -p "$(dirname "$file")"
	: >"$file"
	chown $user "$file"
done <"$folder/files"

mkdir -p "$home/run" "$home/cache" "$home/config/libvirt" "$home/bin"
# libvirt asks swtpm's programs whether they know TPM 2.0, and starts none of them for a domain that does not run.
for program in swtpm swtpm_setup swtpm_ioctl; do
	printf '%s\n' '#!/bin/sh' 'echo '"'"'{"type": "'$program'", "features": ["tpm-1.2", "tpm-2.0"]}'"'" >"$home/bin/$program"
	chmod 755 "$home/bin/$program"
done
# Else libvirtd wants virtlogd for QEMU's output.
echo 'stdio_handler = "file"' >"$home/config/libvirt/qemu.conf"
chown -R $user:$user "$home"

as() {
	env -i LC_ALL=C PATH="$home/bin":/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" XDG_RUNTIME_DIR="$home/run" XDG_CACHE_HOME="$home/cache" XDG_CONFIG_HOME="$home/config" \
		setpriv --reuid $user --regid $user --clear-groups --inh-caps=+net_admin --ambient-caps=+net_admin --pdeathsig KILL -- "$@"
}
as libvirtd --timeout 0 >"$folder/log" 2>&1 &
tries=0
until [ -S "$home/run/libvirt/libvirt-sock" ]; do
	tries=$((tries + 1))
	if [ $tries -gt 600 ]; then
		echo "libvirtd made no socket:" >&2
		tail -n 20 "$folder/log" >&2
		exit 1
	fi
	sleep 0.1
done
virsh() { as virsh --connect qemu:///session "$@"; }

# domxml-to-native replaces a domain's interfaces by ones without address, queues and MTU.
# A domain with interfaces is started, and what stands in for QEMU writes its arguments down.
end=END-OF-ANSWER questions=
for xml in "$folder"/*.xml; do
	name=${xml%.xml}
	if ! grep -q '<interface' "$xml"; then
		echo "$name" >>"$folder/asked"
		questions="$questions domxml-to-native qemu-argv --xml $xml; echo $end;"
		continue
	fi
	rm -f "$home/argv"
	queues=$(sed -n 's/.*<driver name="vhost" queues=.*/multi_queue/p' "$xml")
	taps=$(grep -o 'dev="tap[0-9]*"' "$xml" | grep -o 'tap[0-9]*')
	for tap in $taps; do ip tuntap add dev "$tap" mode tap user $user vnet_hdr $queues; done
	virsh create "$xml" >"$name.error" 2>&1 || true
	for tap in $taps; do ip tuntap del dev "$tap" mode tap $queues; done
	if [ -e "$home/argv" ]; then mv "$home/argv" "$name.argv"; fi
done

# One virsh asks about all the others: a virsh that starts costs more than what it asks. An answer is a line of shell: variables, the
# program and its arguments. The answer about a domain that libvirt refuses is empty, and errors.txt has why.
virsh "$questions" >"$folder/answers" 2>"$folder/errors.txt" || true
awk -v RS="$end\n" '{gsub(/\n/, ""); print}' "$folder/answers" >"$folder/lines"
while read -r name <&3 && IFS= read -r line <&4; do
	if [ -n "$line" ]; then
		sh -c 'set -- '"$line"'; for a in "$@"; do printf "%s\0" "$a"; done' >"$name.argv"
	else
		head -n 5 "$folder/errors.txt" >"$name.error"
	fi
done 3<"$folder/asked" 4<"$folder/lines"
