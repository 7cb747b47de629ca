//go:build mage

package main

import (
	"strings"
	"testing"
)

func TestArrange(t *testing.T) {
	for line, want := range map[string]string{
		"up -h":                            "-h up",
		"doctor virt":                      "doctor -board=virt",
		"doctor -json virt":                "doctor -json -board=virt",
		"boards --json":                    "boards -json",
		"build virt -parse":                "build virt -parse",
		"-l":                               "-l",
		"deploy virt virt":                 "deploy:board virt virt",
		"deploy -h":                        "-h deploy:board",
		"-h deploy":                        "-h deploy:board",
		"report a b -out=c":                "report a,b -out=c",
		"report -as=tap a":                 "report a -as=tap",
		"report":                           "report",
		"deploy:run b h i -- ls -l --help": `deploy:run b h i -argv=["ls","-l","--help"]`,
	} {
		got := arrange(append([]string{"slipway"}, strings.Fields(line)...))
		if joined := strings.Join(got[1:], " "); joined != want {
			t.Errorf("arrange(%s) = %s; want %s", line, joined, want)
		}
	}
}

func TestLacking(t *testing.T) {
	for line, want := range map[string]string{
		"build":             "build: the board is missing (boards lists them); -h build explains it",
		"build -parse":      "build: the board is missing (boards lists them); -h build explains it",
		"flash virt -yes=x": "flash: the device is missing (devices lists them); -h flash explains it",
		"build virt":        "",
		"boards":            "",
		"-h build":          "",
		"":                  "",
	} {
		if got := lacking(append([]string{"slipway"}, strings.Fields(line)...)); got != want {
			t.Errorf("lacking(%s) = %q; want %q", line, got, want)
		}
	}
}
