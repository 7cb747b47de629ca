package suite

import (
	"testing"

	"slipway/ci/suite/suitetest"

	"github.com/google/go-cmp/cmp"
)

// If a check restarted the board, the logs include the boot before.
func TestLogsOfTheBootBefore(t *testing.T) {
	board := suitetest.Recorded{"cat /proc/sys/kernel/random/boot_id": "second\n", "journalctl": "an error\n", "sh -c dmesg": "exit 1\n", "sh -c journalctl": "its journal\n"}
	for _, tt := range []struct {
		began string
		want  []string
	}{
		{"first", []string{"journal, errors of this boot", "journal of this boot", "journal of the boot before"}},
		{"second", []string{"journal, errors of this boot", "journal of this boot"}},
		{"", []string{"journal, errors of this boot", "journal of this boot"}},
	} {
		var got []string
		for _, l := range (&Session{Board: board}).readLogs(t.Context(), tt.began) {
			got = append(got, l.Name)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("began in boot %q (-want +got):\n%s", tt.began, diff)
		}
	}
}
