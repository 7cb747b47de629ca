package run

import (
	"io/fs"
	"os"
	"syscall"
)

// WriteProgram is os.WriteFile for a program that is started right afterwards. It holds ForkLock.
// Otherwise a program that another goroutine starts would inherit the open file for a moment, and
// the kernel runs no file that is open for writing ("text file busy", golang/go#22315).
func WriteProgram(name string, data []byte, mode fs.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, data, mode)
}
