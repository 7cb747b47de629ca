package tegra

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The package's scripts, and NVIDIA's programs behind them, are simulated by this test
// binary: it repeats transcripts in the form of what people's flashes printed. Lines
// that begin with @ are what the script does:
//
//	@log TEXT        into its own log, as the script diverts most output
//	@file NAME TEXT  leaves a file in its folder
//	@echo-args       what it was called with and the variables that steer it
//	@card            makes the image that it is asked for
//	@hang            does not end, until it is killed
//	@child           has a child that does not end by itself
//	@exit N
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "stand-in" {
		runTranscript(os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runTranscript(transcript string, args []string) {
	data, err := os.ReadFile(transcript)
	if err != nil {
		fmt.Println("stand-in:", err)
		os.Exit(99)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		order, rest, _ := strings.Cut(line, " ")
		switch order {
		case "@log":
			appendTo("log.initrd-flash.2026-11-22-06.00.00", rest+"\n")
		case "@file":
			name, text, _ := strings.Cut(rest, " ")
			appendTo(name, text+"\n")
		case "@echo-args":
			fmt.Println("args:", strings.Join(args, " "))
			for _, name := range []string{"BOARDID", "serial_number", "TEGRAFLASH_CHECK_USB_INSTANCE", "RAMCODE"} {
				fmt.Printf("%s=%s\n", name, os.Getenv(name))
			}
		case "@card":
			makeCard(args)
		case "@hang":
			appendTo("hangs", "here\n")
			time.Sleep(time.Hour)
		case "@child":
			child()
		case "@exit":
			os.Exit(parseCount(rest))
		default:
			fmt.Println(line)
		}
	}
}

func appendTo(name, text string) {
	_ = os.MkdirAll(filepath.Dir(name), 0o755)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		fmt.Println("stand-in:", err)
		os.Exit(99)
	}
}

// child starts a process beside the script, as its pipes through tee do.
func child() {
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		fmt.Println("stand-in:", err)
		os.Exit(99)
	}
	appendTo("child", fmt.Sprintln(cmd.Process.Pid))
}

// makeCard makes an image of the requested size, as make-sdcard does.
func makeCard(args []string) {
	blocks := int64(0)
	for i, a := range args {
		if a == "-s" {
			blocks = int64(parseCount(args[i+1]))
		}
	}
	out := args[len(args)-1]
	appendTo(out, "the card")
	if err := os.Truncate(out, blocks*512); err != nil {
		fmt.Println("stand-in:", err)
		os.Exit(99)
	}
}

// script is a script of the package that prints a transcript.
func script(t *testing.T, transcript string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "transcript")
	if err := os.WriteFile(path, []byte(transcript), 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("#!/bin/bash\nexec '%s' stand-in '%s' \"$@\"\n", self, path)
}
