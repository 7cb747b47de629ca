package wrap

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Report writes err where engines look for a runtime's errors. Standard error alone
// does not reach the user of containerd or docker.
func (c Call) Report(err error) {
	if c.Log == "" {
		return
	}
	// A pipe that nobody reads does not hold this up.
	f, openErr := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	if openErr != nil {
		return
	}
	defer f.Close()
	line := err.Error()
	if c.JSON {
		data, _ := json.Marshal(map[string]string{"level": "error", "msg": line, "time": time.Now().Format(time.RFC3339)})
		line = string(data)
	}
	fmt.Fprintln(f, line)
}
