// slipway-crosscheck-go does what a Go program of another machine gets wrong: each part is
// compared with what it must give. The workload programs runs it.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// parts are what the program tries.
var parts = []struct {
	name string
	try  func() error
}{
	{"panics", tryPanics},
	{"threads", tryGoroutines},
	{"processor", tryProcessor},
	{"other programs", tryPrograms},
	{"accounts and addresses", tryLookups},
}

// main tries all parts, prints OK or FAIL for each, and exits with 1 if one failed.
func main() {
	well := true
	for _, part := range parts {
		if err := part.try(); err != nil {
			well = false
			fmt.Printf("FAIL %s: %v\n", part.name, err)
		} else {
			fmt.Println("OK", part.name)
		}
	}
	rate, err := hash()
	if err != nil {
		well = false
		fmt.Println("FAIL sha256:", err)
	} else {
		fmt.Printf("OK sha256\nsha256=%.1f MB/s\n", rate)
	}
	fmt.Println("program:", runtime.GOARCH, runtime.Version())
	if !well {
		fmt.Println("Result = FAIL")
		os.Exit(1)
	}
	fmt.Println("Result = PASS")
}

// tryPanics checks that a read through a nil pointer panics and that recover returns the error.
func tryPanics() (err error) {
	defer func() {
		if p, ok := recover().(runtime.Error); !ok || !strings.Contains(p.Error(), "nil pointer") {
			err = fmt.Errorf("a read of nothing gave %v", p)
		}
	}()
	var nothing *int
	return fmt.Errorf("read %d of nothing", *nothing)
}

// tryGoroutines checks that 64 goroutines, with garbage collection, add up to the right sum.
func tryGoroutines() error {
	var sum atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Add(1)
		go func() {
			defer all.Done()
			garbage := make([][]byte, 0, 100)
			for i := range 100 {
				garbage = append(garbage, make([]byte, 1000+i))
			}
			sum.Add(int64(len(garbage)))
		}()
	}
	all.Wait()
	runtime.GC()
	if n := sum.Load(); n != 6400 {
		return fmt.Errorf("the sum is %d", n)
	}
	return nil
}

// tryProcessor checks that uname -m names the processor that this program was compiled for. An
// emulated program, or one of another word size, fails.
func tryProcessor() error {
	out, err := exec.Command("uname", "-m").Output()
	if err != nil {
		return err
	}
	kernel := strings.TrimSpace(string(out))
	if want := map[string]string{"arm64": "aarch64", "amd64": "x86_64", "riscv64": "riscv64"}[runtime.GOARCH]; want != kernel {
		return fmt.Errorf("the program is for %s, and the kernel is %s", runtime.GOARCH, kernel)
	}
	return nil
}

// tryPrograms checks that the program cat returns what it gets through a pipe.
func tryPrograms() error {
	cmd := exec.Command("cat")
	cmd.Stdin = strings.NewReader("through a pipe")
	out, err := cmd.Output()
	if err == nil && string(out) != "through a pipe" {
		err = fmt.Errorf("cat gave %q", out)
	}
	return err
}

// tryLookups checks that Go, without cgo, finds the user root and localhost's loopback address.
func tryLookups() error {
	root, err := user.Lookup("root")
	if err != nil {
		return err
	}
	addresses, err := net.LookupHost("localhost")
	if err != nil {
		return err
	}
	if root.Uid != "0" || len(addresses) == 0 || !net.ParseIP(addresses[0]).IsLoopback() {
		return fmt.Errorf("root is %s, and localhost is %q", root.Uid, addresses)
	}
	return nil
}

// hash checks the SHA-256 of 8 MiB of zeros, and returns the speed of SHA-256 in million bytes a
// second. Go has its own assembler code for each architecture.
func hash() (float64, error) {
	data := make([]byte, 1<<20)
	h := sha256.New()
	began := time.Now()
	n := 0
	for ; n <= 8 || time.Since(began) < 500*time.Millisecond; n++ {
		if n == 8 {
			if got := hex.EncodeToString(h.Sum(nil)); got != zeros8 {
				return 0, fmt.Errorf("8 MiB of zeros are %s", got)
			}
		}
		h.Write(data)
	}
	return float64(n) * float64(len(data)) / 1e6 / time.Since(began).Seconds(), nil
}

// zeros8 is the SHA-256 of 8 MiB of zeros.
const zeros8 = "2daeb1f36095b44b318410b3f4e8b5d989dcc7bb023d1426c492dab0a3053e74"
