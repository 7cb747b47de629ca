#!/bin/sh
# Builds a plan with trtexec, labels it with the GPU and the TensorRT that built it, and
# runs it. A plan with another label is refused: trtexec does not get to read it. The
# arguments are options of trtexec for the build, such as --fp16.
#
# It prints trtexec's own lines, "OK part" or "FAIL part: reason", and "Result = PASS" or
# "Result = FAIL". Memory is what the board had less of while the plan ran.
set -u
trtexec=${TRTEXEC:-/usr/src/tensorrt/bin/trtexec}
model=${MODEL:-/usr/src/tensorrt/data/mnist/mnist.onnx}
meminfo=${MEMINFO:-/proc/meminfo}

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

fail() { echo "FAIL $1"; echo "Result = FAIL"; exit 1; }

# label reads what trtexec says of the board before it reads a plan: here an empty one.
label() {
	: >"$dir/empty"
	"$trtexec" --loadEngine="$dir/empty" >"$dir/log" 2>&1
	sm=$(sed -n 's/.*Compute Capability: *\([0-9][0-9]*\.[0-9]*\).*/\1/p' "$dir/log" | head -n 1)
	version=$(sed -n 's/.*RUNNING TensorRT\.trtexec \[TensorRT v\([0-9]*\)\].*/\1/p' "$dir/log" | head -n 1)
	[ -n "$sm" ] && [ -n "$version" ] && echo "compute $sm TensorRT $version"
}

available() { awk '$1 == "MemAvailable:" {print $2}' "$meminfo"; }

# run runs a plan if its label is the board's.
run() {
	built=$(cat "$1.for") && board=$(label) || return 1
	if [ "$built" != "$board" ]; then
		echo "REFUSED a plan for $built: the board has $board"
		return 2
	fi
	before=$(available) least=$before
	"$trtexec" --loadEngine="$1" >"$dir/log" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		now=$(available)
		[ "$now" -ge "$least" ] || least=$now
		sleep 0.1
	done
	wait "$pid"
	status=$?
	grep -E '\[I\] (Throughput|Latency):|^&&&& (PASSED|FAILED)' "$dir/log"
	[ "$status" = 0 ] || { tail -n 20 "$dir/log"; return 1; }
	echo "memory=$(((before - least) / 1024)) MiB"
}

"$trtexec" --onnx="$model" "$@" --saveEngine="$dir/plan" >"$dir/log" 2>&1
status=$?
[ "$status" = 0 ] || { tail -n 20 "$dir/log"; fail "build: trtexec ended with $status"; }
grep -E '^&&&& (PASSED|FAILED)' "$dir/log"
[ -s "$dir/plan" ] || fail "build: no plan"
label >"$dir/plan.for" || fail "label: trtexec names no GPU or no version"
echo "OK built a plan for $(cat "$dir/plan.for")"
echo "plan=$(($(wc -c <"$dir/plan") / 1024)) KiB"

# A plan as another board could have built it.
cp "$dir/plan" "$dir/other" && sed 's/compute [0-9.]*/compute 0.0/' "$dir/plan.for" >"$dir/other.for" || exit 1
run "$dir/other"
[ $? = 2 ] || fail "refusal: a plan of another GPU was not refused"
echo "OK refused a plan of another GPU"

run "$dir/plan" || fail "run"
echo "OK ran the plan"
echo "Result = PASS"
