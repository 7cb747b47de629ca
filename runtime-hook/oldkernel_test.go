package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newCalls are those that Linux 4.9, the oldest kernel of a Jetson, lacks and that
// the hook, its libraries or Go may try.
var newCalls = []uintptr{
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_OPENAT2,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_STATX, unix.SYS_FACCESSAT2, unix.SYS_FCHMODAT2, unix.SYS_CLOSE_RANGE, unix.SYS_CLONE3,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_PIDFD_GETFD, unix.SYS_EPOLL_PWAIT2, unix.SYS_RSEQ,
	statmount, listmount,
}

// x/sys of the hook's module does not know these two; they have one number everywhere.
const statmount, listmount = 457, 458

// kernels are what the new calls answer: on an old kernel, and in a container
// whose seccomp filter does not know them.
var kernels = map[string]unix.Errno{"ENOSYS": unix.ENOSYS, "EPERM": unix.EPERM}

// The test binary, with this as its first argument, runs a program without the new calls.
const withoutCalls = "without-new-calls"

func init() {
	if len(os.Args) > 3 && os.Args[1] == withoutCalls {
		err := deny(kernels[os.Args[2]])
		if err == nil {
			err = unix.Exec(os.Args[3], os.Args[3:], os.Environ())
		}
		fmt.Fprintln(os.Stderr, withoutCalls, err)
		os.Exit(1)
	}
}

// deny makes the new calls of this thread, and of what it executes, fail. The main
// thread is locked; see main.go.
func deny(errno unix.Errno) error {
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS} // the call's number
	filter := []unix.SockFilter{load}
	for _, call := range newCalls {
		filter = append(
			filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(call)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		)
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	if err := install(filter); err != nil {
		return err
	}
	if _, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{}); err != errno {
		return fmt.Errorf("openat2 answers %v in spite of the filter; want %v", err, errno)
	}
	return nil
}

func install(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// onOldKernel makes the lab's hooks run without the new calls.
func (l *lab) onOldKernel(kernel string) {
	l.t.Helper()
	// The binary is where the hook is, which other users may reach.
	self, err := os.Executable()
	must(l.t, err)
	at := filepath.Join(filepath.Dir(hookBinary(l.t)), "test")
	if err := os.Link(self, at); err != nil && !errors.Is(err, os.ErrExist) {
		data, err := os.ReadFile(self)
		must(l.t, err)
		write(l.t, at, string(data))
	}
	l.hook = []string{at, withoutCalls, kernel, hookBinary(l.t), "hook"}
}

// somewhere is where the short form looks: each engine at one stage. SLIPWAY_LONG=1 looks
// everywhere.
func somewhere(t *testing.T, lab func(*testing.T, string) *lab, test func(t *testing.T, l *lab, stage string)) {
	if os.Getenv("SLIPWAY_LONG") != "" {
		everywhereIn(t, lab, test)
		return
	}
	t.Run("runc/prestart", func(t *testing.T) { test(t, lab(t, "runc"), "prestart") })
	t.Run("crun/createRuntime", func(t *testing.T) { test(t, lab(t, "crun"), "createRuntime") })
}

// Containers get the same on old kernels.
func TestOldKernel(t *testing.T) {
	for kernel := range kernels {
		t.Run(kernel, func(t *testing.T) {
			t.Run("everything arrives", func(t *testing.T) {
				somewhere(t, newLab, func(t *testing.T, l *lab, stage string) {
					l.onOldKernel(kernel)
					everythingArrives(t, l, stage)
				})
			})
			t.Run("read-only volume", func(t *testing.T) {
				somewhere(t, newLab, func(t *testing.T, l *lab, stage string) {
					l.onOldKernel(kernel)
					readOnlyVolume(t, l, stage)
				})
			})
			t.Run("user namespace", func(t *testing.T) {
				somewhere(t, namespacedLab, func(t *testing.T, l *lab, stage string) {
					l.onOldKernel(kernel)
					userNamespaceGets(t, l, container{stage: stage, env: all, spec: userNamespace(hostRoot)}, func(l *lab) { l.chownImage(hostRoot) })
				})
			})
		})
	}
}

// The slower method is just as safe.
func TestOldKernelEscape(t *testing.T) {
	for i, name := range names(escapes) {
		// Half of them on each in the short form, as each container costs a tenth of a second.
		for k, kernel := range names(kernels) {
			if os.Getenv("SLIPWAY_LONG") == "" && i%2 != k {
				continue
			}
			t.Run(kernel+"/"+name, func(t *testing.T) {
				l := newLab(t, []string{"runc", "crun"}[i/2%2])
				l.onOldKernel(kernel)
				escape(t, l, []string{"prestart", "createRuntime"}[i/4%2], escapes[name])
			})
		}
	}
}

func names[V any](of map[string]V) []string {
	var out []string
	for name := range of {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
