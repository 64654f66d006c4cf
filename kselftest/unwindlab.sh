#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Runs unwindlab's scenarios on the running kernel, in machines of their own, with KTAP on stdout. KSELFTEST_UNWINDLAB_SH_ARGS
# has other arguments of `unwindlab run`, as for every kselftest.

# tools/testing/selftests/kselftest.h. An exit code of 2 is an expected failure there, and wrong usage in unwindlab.
KSFT_PASS=0
KSFT_FAIL=1
KSFT_SKIP=4

if ! command -v unwindlab >/dev/null; then
	echo "1..0 # SKIP no unwindlab in PATH"
	exit $KSFT_SKIP
fi
if [ $# -eq 0 ]; then
	image=/boot/vmlinuz-$(uname -r)
	if [ ! -r "$image" ]; then
		echo "1..0 # SKIP cannot read $image; KSELFTEST_UNWINDLAB_SH_ARGS can name another kernel"
		exit $KSFT_SKIP
	fi
	set -- --kernel "path:$image"
fi

unwindlab run --format ktap "$@"
code=$?
case $code in
0) exit $KSFT_PASS ;;
125) exit $KSFT_SKIP ;;
*)
	echo "# unwindlab: exit code $code"
	exit $KSFT_FAIL
	;;
esac
