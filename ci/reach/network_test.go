package reach

import (
	"strings"
	"syscall"
	"testing"
)

// The next step names the machine as the program in it takes it.
func TestExplainNetwork(t *testing.T) {
	for _, tt := range []struct {
		host string
		err  error
		want string
	}{
		{"root@192.0.2.7:2222", syscall.ECONNREFUSED, "as root@192.0.2.7:PORT"},
		{"lab", syscall.ECONNREFUSED, "as lab:PORT"},
		{"root@192.0.2.7:2222", syscall.EHOSTUNREACH, ": ping 192.0.2.7"},
		{"root@2001:db8::7", syscall.ENETUNREACH, ": ping 2001:db8::7"},
	} {
		if got := explainNetwork(tt.host, tt.err).Error(); !strings.HasSuffix(got, tt.want) {
			t.Errorf("explainNetwork(%s) = %s; want at its end %s", tt.host, got, tt.want)
		}
	}
}
