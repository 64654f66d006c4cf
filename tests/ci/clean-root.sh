#!/bin/bash
# Executes a program in a root file system of its own: clean-root.sh ROOT CACHE PROGRAM [ARGUMENT...]
# The system's programs and libraries are there, read-only, and the cache of kernels at the place where HOME has it. /etc, /tmp, /var and
# the home folder are the root's own, and stay from call to call. The environment is the caller's.
set -euo pipefail
root=$1 cache=$2
shift 2
if [ -z "${INSIDE:-}" ]; then
	as_root=()
	[ "$(id -u)" = 0 ] || as_root=(--user --map-root-user)
	INSIDE=1 exec unshare "${as_root[@]}" --mount "$0" "$root" "$cache" "$@"
fi
unset INSIDE
mkdir -p "$root"/{usr,dev,proc,sys,tmp,var,etc,cache}
for link in bin sbin lib lib64; do
	if [ -L "/$link" ] && [ ! -e "$root/$link" ]; then
		cp -P "/$link" "$root/$link"
	fi
done
for path in passwd group nsswitch.conf resolv.conf hosts ld.so.cache alternatives ssl apt; do
	if [ -e "/etc/$path" ] && [ ! -e "$root/etc/$path" ]; then
		cp -rL "/etc/$path" "$root/etc/$path"
	fi
done
for path in dev proc sys; do
	mount --rbind "/$path" "$root/$path"
done
mount --bind /usr "$root/usr"
mount -o remount,bind,ro "$root/usr"
mount --bind "$cache" "$root/cache"
exec chroot "$root" "$@"
