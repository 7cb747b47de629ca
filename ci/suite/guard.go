package suite

import (
	"context"
	"slices"
	"strconv"
	"time"

	"slipway/flash/target"
)

// guardScript becomes a program of a check, after it has started a guard. The guard ends the
// program's group where Slipway cannot: the connection is gone, or the check's time was over
// for a while. It also removes the program's folder then, if it has one.
//
// The group is the program's own if an SSH server or sudo started it. Otherwise the group may hold
// other programs, and the guard ends only the check's. A zombie does not run: in some containers
// nobody waits for it.
const guardScript = `limit=$1 dir=$2 parent=$PPID group=$$
shift 2
[ -d "/proc/$parent" ] || parent=$$
read -r _ _ _ _ leader _ </proc/$$/stat
read -r starter </proc/$parent/comm
case "$leader $starter" in
"$$ "* | "$parent sudo") group=-$leader ;;
esac
runs() { read -r _ _ state _ <"/proc/$1/stat" && [ "$state" != Z ]; }
{
	n=0
	while runs $$ && runs "$parent" && [ "$n" -lt "$limit" ]; do
		sleep 1
		n=$((n + 1))
	done
	if runs $$; then
		trap '' TERM
		kill -TERM "$group"
		sleep 5
		[ -z "$dir" ] || rm -rf "$dir"
		kill -KILL "$group"
	elif [ "$parent" != $$ ] && ! runs "$parent"; then
		[ -z "$dir" ] || rm -rf "$dir"
	fi
} </dev/null >/dev/null 2>&1 &
exec "$@"`

// guardPause is how much later than Slipway the guard ends a program.
const guardPause = 15 * time.Second

// guardedFolder is the key of a context: its value is the folder of the program that runs in
// it, or "". Other programs have no guard.
type guardedFolder struct{}

// guardedBoard starts guards. They are invisible elsewhere: transcripts show only the programs.
type guardedBoard struct{ Board }

func (b guardedBoard) Run(ctx context.Context, argv ...string) (target.Result, error) {
	if dir, ok := ctx.Value(guardedFolder{}).(string); ok {
		limit := 24 * time.Hour
		if end, ok := ctx.Deadline(); ok {
			limit = time.Until(end) + guardPause
		}
		argv = slices.Concat([]string{"sh", "-c", guardScript, "sh", strconv.Itoa(int(limit.Seconds())), dir}, argv)
	}
	return b.Board.Run(ctx, argv...)
}

// runGuarded runs a program that must not outlive its check. The guard removes dir, if it is
// not "".
func (s *Session) runGuarded(ctx context.Context, dir string, argv ...string) (target.Result, error) {
	return s.Board.Run(context.WithValue(ctx, guardedFolder{}, dir), argv...)
}
