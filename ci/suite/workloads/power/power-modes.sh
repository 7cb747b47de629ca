#!/bin/sh
# Sets each mode of nvpmodel.conf, reads it back, runs a workload in it, and restores the
# mode of before. It prints a row for each mode, and "Result = PASS" or "Result = FAIL".
#
# WORKLOAD is a command for sh that prints "Throughput: NUMBER". CONF is nvpmodel.conf.
# SAVED is the file with the mode of before: the check's teardown restores it if this
# script could not.
set -u
conf=${CONF:-/etc/nvpmodel.conf} saved=${SAVED:-/run/slipway-power-mode} hwmon=${HWMON:-/sys/class/hwmon}
workload=${WORKLOAD:-sleep 2; echo Throughput: 0}

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
restore() {
	nvpmodel -m "$before" </dev/null >/dev/null 2>&1
	if [ "$(mode)" = "$before" ]; then rm -f "$saved"; echo "OK restored mode $before"; else echo "FAIL restored mode $before"; failed=1; fi
}
failed=0 tried=0
trap 'restore; exit 1' HUP INT TERM
modes=$(sed -n 's/^< *POWER_MODEL  *ID=\([0-9]*\)  *NAME=\([^ >]*\).*/\1 \2/p' "$conf" | head -n 32)
while read -r id want; do
	[ -n "$id" ] || continue
	if ! nvpmodel -m "$id" </dev/null >/dev/null 2>&1; then
		echo "SKIP mode=$id name=$want: nvpmodel refuses it without a restart"
		continue
	fi
	if [ "$(mode)" != "$id" ] || [ "$(name)" != "$want" ]; then
		echo "FAIL mode=$id name=$want: read back $(mode) $(name)"; failed=1
		continue
	fi
	tried=$((tried + 1))
	out=$(mktemp) || exit 1
	sh -c "$workload" >"$out" 2>&1 &
	pid=$!
	n=0 total=0
	while kill -0 "$pid" 2>/dev/null; do
		total=$((total + $(watts))) n=$((n + 1))
		sleep 0.2
	done
	wait "$pid" || { echo "FAIL mode=$id name=$want: the workload ended with $?"; failed=1; }
	rate=$(sed -n 's/.*Throughput: *\([0-9.]*\).*/\1/p' "$out" | tail -n 1)
	rm -f "$out"
	awk -v id="$id" -v name="$want" -v rate="${rate:-0}" -v mw="$total" -v n="$n" 'BEGIN {
		w = n ? mw / n / 1000 : 0
		printf "OK mode=%s name=%s rate=%s watts=%.2f rate_per_watt=%.2f\n", id, name, rate, w, w ? rate / w : 0
	}'
done <<EOF
$modes
EOF
restore
[ "$tried" -gt 0 ] || { echo "FAIL $conf names no mode that could be set"; failed=1; }
[ "$failed" = 0 ] && echo "Result = PASS" || echo "Result = FAIL"
exit "$failed"
