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
		{"root@192.0.2.7:2222", syscall.ECONNREFUSED, "ssh -v ssh://root@192.0.2.7:2222 true  # start the board's SSH server, or add its port to the name"},
		{"lab", syscall.ECONNREFUSED, "ssh -v ssh://lab true  # start the board's SSH server, or add its port to the name"},
		{"root@192.0.2.7:2222", syscall.EHOSTUNREACH, "ping -c 3 192.0.2.7  # see that the board is on and in this network"},
		{"root@2001:db8::7", syscall.ENETUNREACH, "ping -c 3 2001:db8::7  # see that the board is on and in this network"},
		{"root@[::1]:22002", syscall.EHOSTUNREACH, "ping -c 3 ::1  # see that the board is on and in this network"},
		{"root@[::1]:22002", syscall.ECONNREFUSED, "ssh -v 'ssh://root@[::1]:22002' true  # start the board's SSH server, or add its port to the name"},
	} {
		if got := explainNetwork(tt.host, tt.err).Error(); !strings.HasSuffix(got, tt.want) {
			t.Errorf("explainNetwork(%s) = %s; want at its end %s", tt.host, got, tt.want)
		}
	}
}
