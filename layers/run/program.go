package run

import (
	"io/fs"
	"os"
	"syscall"
)

// WriteProgram is os.WriteFile for a file that is run right afterwards. A program that another
// goroutine starts at the same time would inherit the open file for a moment, and the kernel runs
// no file that is open for writing ("text file busy", golang/go#22315).
func WriteProgram(name string, data []byte, mode fs.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, data, mode)
}
