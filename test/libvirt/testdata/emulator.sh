#!/bin/sh
# Stands in for the QEMU of its own name: libvirt may ask it what it can do, but a machine it does not start.
case " $* " in
*" -name "*)
	for a in "$0" "$@"; do printf '%s\0' "$a"; done >/run/h/argv
	echo "these are the arguments" >&2
	exit 1
	;;
esac
exec "/usr/bin/${0##*/}" "$@"
