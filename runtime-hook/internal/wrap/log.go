package wrap

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Report writes an error line where engines look for a runtime's errors. The user of containerd or
// docker does not see standard error.
func (c Call) Report(line string) {
	if c.Log == "" {
		return
	}
	// A pipe that nobody reads does not hold this up.
	f, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	if c.JSON {
		data, _ := json.Marshal(map[string]string{"level": "error", "msg": line, "time": time.Now().Format(time.RFC3339)})
		line = string(data)
	}
	fmt.Fprintln(f, line)
}
