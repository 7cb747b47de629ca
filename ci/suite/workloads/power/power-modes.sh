#!/bin/sh
# Sets each mode of nvpmodel.conf, reads it back, runs a workload in it for each batch size,
# and restores the mode of before. It prints a row for each mode and batch size, and
# "Result = PASS" or "Result = FAIL".
#
# WORKLOAD is a command for sh that prints "Throughput: NUMBER". It finds the batch size in
# BATCH, which is one of BATCHES. It is ended after LIMIT seconds, or with more than 10 MB of
# output. CONF is nvpmodel.conf. SAVED is the file with the mode of before: the check's
# teardown restores it if this script could not.
set -u
conf=${CONF:-/etc/nvpmodel.conf} saved=${SAVED:-/run/slipway-power-mode} hwmon=${HWMON:-/sys/class/hwmon}
workload=${WORKLOAD:-sleep 2; echo Throughput: 0} limit=${LIMIT:-240} batches=${BATCHES:-1}
thermal=${THERMAL:-/sys/class/thermal}

# The last line of nvpmodel -q is the mode's number. Without an answer nvpmodel does not
# restart the board for modes that want it.
mode() { nvpmodel -q </dev/null 2>/dev/null | tail -n 1; }
name() { nvpmodel -q </dev/null 2>/dev/null | sed -n 's/^NV Power Mode: *//p'; }

# Rails through which all of a board's power comes, by the names of its generations.
inputs='VDD_IN|POM_5V_IN|VDD_GPU_SOC|VDD_CPU_CV|SYS5V|VIN_SYS_5V0'

# milliwatts adds up the rails that an INA3221 calls inputs, or all of them if it has none.
milliwatts() {
	for rails in "$inputs" '.*'; do
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

# statsMilliwatts returns the mean of what tegrastats has printed: pairs of a rail and
# NOW/MEAN in milliwatts.
statsMilliwatts() {
	awk -v inputs="^($inputs)\$" '{
		main = all = 0
		for (i = 1; i < NF; i++)
			if ($i ~ /^[A-Z][A-Z0-9_]*$/ && $(i + 1) ~ /^[0-9]+(mW)?\/[0-9]+(mW)?$/) {
				if ($i ~ inputs) main += $(i + 1) + 0
				all += $(i + 1) + 0
			}
		sum += main ? main : all
	} END { printf "%.0f\n", NR ? sum / NR : 0 }' "$stats"
}

# celsius returns the highest temperature, or nothing.
celsius() { cat "$thermal"/thermal_zone*/temp 2>/dev/null | sort -n | tail -n 1 | awk '$1 > 0 {printf "%.1f", $1 / 1000}'; }

before=$(mode)
case $before in
'' | *[!0-9]*) echo "FAIL nvpmodel -q names no mode"; echo "Result = FAIL"; exit 1 ;;
esac
echo "$before" >"$saved" || exit 1
# Slipway runs the script in a folder of its own, and removes that.
out=$(mktemp ./out.XXXXXX) && stats=$(mktemp ./out.XXXXXX) || exit 1
pid= sampler=
endSampler() { [ -z "$sampler" ] || kill "$sampler" 2>/dev/null; sampler=; }
endWorkload() { endSampler; [ -z "$pid" ] || kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null; }
restore() {
	endWorkload
	nvpmodel -m "$before" </dev/null >/dev/null 2>&1
	if [ "$(mode)" = "$before" ]; then rm -f "$saved"; echo "OK restored mode $before"; else echo "FAIL restored mode $before"; failed=1; fi
}
failed=0 tried=0
fail() { echo "FAIL mode=$id name=$want batch=$BATCH: $1"; failed=1; }
trap 'rm -f "$out" "$stats"' EXIT
trap 'restore; exit 1' HUP INT TERM
# Without a reader echo must not end the script before it has restored the mode.
trap '' PIPE

# load runs the workload in a mode with a batch size, and prints its row.
load() {
	: >"$stats"
	if [ "$(milliwatts)" = 0 ] && command -v tegrastats >/dev/null; then
		tegrastats --interval 200 >"$stats" 2>/dev/null </dev/null &
		sampler=$!
	fi
	(ulimit -f 20480; trap - PIPE; exec setsid sh -c "$workload") >"$out" 2>&1 </dev/null &
	pid=$!
	n=0 total=0 ended=
	began=$(cut -d. -f1 /proc/uptime)
	while kill -0 "$pid" 2>/dev/null; do
		total=$((total + $(milliwatts))) n=$((n + 1))
		sleep 0.2
		[ $(($(cut -d. -f1 /proc/uptime) - began)) -le "$limit" ] || { ended=yes; endWorkload; }
	done
	wait "$pid"
	status=$?
	pid=
	if [ -n "$sampler" ]; then
		endSampler
		total=$(statsMilliwatts) n=1
	fi
	heat=$(celsius)
	rate=$(sed -n 's/.*Throughput: *\([0-9][0-9.]*\).*/\1/p' "$out" | tail -n 1)
	if [ -n "$ended" ]; then fail "the workload did not end in $limit s"
	elif [ "$status" != 0 ]; then fail "the workload ended with $status"
	elif [ -z "$rate" ]; then fail "the workload printed no Throughput"
	else
		awk -v id="$id" -v name="$want" -v batch="$BATCH" -v rate="$rate" -v mw="$total" -v n="$n" -v heat="${heat:+ celsius=$heat}" 'BEGIN {
			w = n ? mw / n / 1000 : 0
			printf "OK mode=%s name=%s batch=%s rate=%s watts=%.2f rate_per_watt=%.2f%s\n", id, name, batch, rate, w, w ? rate / w : 0, heat
		}'
	fi
}

export BATCH=1
modes=$(sed -n 's/^< *POWER_MODEL  *ID=\([0-9]*\)  *NAME=\([^ >]*\).*/\1 \2/p' "$conf" | head -n 32)
while read -r id want; do
	[ -n "$id" ] || continue
	if ! nvpmodel -m "$id" </dev/null >/dev/null 2>&1; then
		echo "SKIP mode=$id name=$want: nvpmodel refuses it without a restart"
	elif [ "$(mode)" != "$id" ] || [ "$(name)" != "$want" ]; then
		BATCH=- && fail "read back $(mode) $(name)"
	else
		tried=$((tried + 1))
		for BATCH in $batches; do load; done
	fi
done <<EOF
$modes
EOF
restore
[ "$tried" -gt 0 ] || { echo "FAIL $conf names no mode that could be set"; failed=1; }
[ "$failed" = 0 ] && echo "Result = PASS" || echo "Result = FAIL"
exit "$failed"
