#!/bin/sh
# Sets each mode of nvpmodel.conf, reads it back, runs a workload in it, and restores the
# mode of before. It prints a row for each mode, and "Result = PASS" or "Result = FAIL".
#
# WORKLOAD is a command for sh that prints "Throughput: NUMBER". It is ended after LIMIT
# seconds in a mode, or with more than 10 MB of output. CONF is nvpmodel.conf. SAVED is the
# file with the mode of before: the check's teardown restores it if this script could not.
set -u
conf=${CONF:-/etc/nvpmodel.conf} saved=${SAVED:-/run/slipway-power-mode} hwmon=${HWMON:-/sys/class/hwmon}
workload=${WORKLOAD:-sleep 2; echo Throughput: 0} limit=${LIMIT:-240}

# The last line of nvpmodel -q is the mode's number. Without an answer nvpmodel does not
# restart the board for modes that want it.
mode() { nvpmodel -q </dev/null 2>/dev/null | tail -n 1; }
name() { nvpmodel -q </dev/null 2>/dev/null | sed -n 's/^NV Power Mode: *//p'; }

# watts adds up the rails that an INA3221 calls inputs, or all of them if it has none.
watts() {
	for rails in 'VDD_IN|POM_5V_IN|VDD_GPU_SOC|VDD_CPU_CV|SYS5V|VIN_SYS_5V0' '.*'; do
		sum=0
		for label in "$hwmon"/*/in*_label; do
			[ -r "$label" ] && grep -qxE "$rails" "$label" || continue
			n=${label##*/in}; n=${n%_label}; d=${label%/*}
			sum=$((sum + $(cat "$d/in${n}_input") * $(cat "$d/curr${n}_input" 2>/dev/null || echo 0) / 1000))
		done
		[ "$sum" -gt 0 ] && break
	done
	echo "$sum"
}

before=$(mode)
case $before in
'' | *[!0-9]*) echo "FAIL nvpmodel -q names no mode"; echo "Result = FAIL"; exit 1 ;;
esac
echo "$before" >"$saved" || exit 1
# Slipway runs the script in a folder of its own, and removes that.
out=$(mktemp ./out.XXXXXX) || exit 1
pid=
endWorkload() { [ -z "$pid" ] || kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null; }
restore() {
	endWorkload
	nvpmodel -m "$before" </dev/null >/dev/null 2>&1
	if [ "$(mode)" = "$before" ]; then rm -f "$saved"; echo "OK restored mode $before"; else echo "FAIL restored mode $before"; failed=1; fi
}
failed=0 tried=0
fail() { echo "FAIL mode=$id name=$want: $1"; failed=1; }
trap 'rm -f "$out"' EXIT
trap 'restore; exit 1' HUP INT TERM
# Without a reader echo must not end the script before it has restored the mode.
trap '' PIPE

# load runs the workload in a mode, and prints its row.
load() {
	(ulimit -f 20480; trap - PIPE; exec setsid sh -c "$workload") >"$out" 2>&1 </dev/null &
	pid=$!
	n=0 total=0 ended=
	began=$(cut -d. -f1 /proc/uptime)
	while kill -0 "$pid" 2>/dev/null; do
		total=$((total + $(watts))) n=$((n + 1))
		sleep 0.2
		[ $(($(cut -d. -f1 /proc/uptime) - began)) -le "$limit" ] || { ended=yes; endWorkload; }
	done
	wait "$pid"
	status=$?
	pid=
	rate=$(sed -n 's/.*Throughput: *\([0-9][0-9.]*\).*/\1/p' "$out" | tail -n 1)
	if [ -n "$ended" ]; then fail "the workload did not end in $limit s"
	elif [ "$status" != 0 ]; then fail "the workload ended with $status"
	elif [ -z "$rate" ]; then fail "the workload printed no Throughput"
	else
		awk -v id="$id" -v name="$want" -v rate="$rate" -v mw="$total" -v n="$n" 'BEGIN {
			w = n ? mw / n / 1000 : 0
			printf "OK mode=%s name=%s rate=%s watts=%.2f rate_per_watt=%.2f\n", id, name, rate, w, w ? rate / w : 0
		}'
	fi
}

modes=$(sed -n 's/^< *POWER_MODEL  *ID=\([0-9]*\)  *NAME=\([^ >]*\).*/\1 \2/p' "$conf" | head -n 32)
while read -r id want; do
	[ -n "$id" ] || continue
	if ! nvpmodel -m "$id" </dev/null >/dev/null 2>&1; then
		echo "SKIP mode=$id name=$want: nvpmodel refuses it without a restart"
	elif [ "$(mode)" != "$id" ] || [ "$(name)" != "$want" ]; then
		fail "read back $(mode) $(name)"
	else
		tried=$((tried + 1))
		load
	fi
done <<EOF
$modes
EOF
restore
[ "$tried" -gt 0 ] || { echo "FAIL $conf names no mode that could be set"; failed=1; }
[ "$failed" = 0 ] && echo "Result = PASS" || echo "Result = FAIL"
exit "$failed"
