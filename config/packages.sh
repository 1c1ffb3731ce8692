#!/bin/bash
# packages.sh [--root WORK] PACKAGE... installs those of Debian's packages that are missing.
#
# Where it cannot, it ends within a second and says what is needed. With --root it also ends if the machine is no Debian
# or the user is not root, for WORK that needs both.
set -euo pipefail
work=
if [ "${1:-}" = --root ]; then work=$2; shift 2; fi

# The system's name, such as "debian 12".
system=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown} ${VERSION_ID:-}" || echo unknown)
missing=()
if command -v dpkg-query apt-get >/dev/null; then
	for package; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
	done
else
	missing=("$@")
fi

wants=()
[ -z "$work" ] || [[ $system == debian* ]] || wants+=("Debian 12 or newer (this is ${system% })")
if [ -n "$work" ] || [ ${#missing[@]} -gt 0 ]; then
	[ "$EUID" = 0 ] || wants+=("root (this is the user $(id -un 2>/dev/null || id -u))")
	command -v apt-get >/dev/null || [ ${#missing[@]} = 0 ] || wants+=("Debian's apt-get")
fi
if [ ${#wants[@]} -gt 0 ]; then
	printf '%s needs %s' "${work:-make}" "${wants[0]}"
	[ ${#wants[@]} = 1 ] || printf ', %s' "${wants[@]:1}"
	if [ ${#missing[@]} -gt 0 ]; then
		printf ', and these packages of Debian, which it then installs: %s\n' "${missing[*]}"
	else
		printf '. The packages of Debian that it needs are installed.\n'
	fi
	exit 1
fi >&2

[ ${#missing[@]} -gt 0 ] || exit 0
exec {lock}<"$0"
flock "$lock" # parts of make install beside each other
echo "installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends \
	"${missing[@]}" >/dev/null
