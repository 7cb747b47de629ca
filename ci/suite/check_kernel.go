package suite

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// parseGrepOutput parses lines of FILE:TEXT as grep -H prints them, and returns the text of each
// file. A colon in a file's name is allowed only in a folder like iio:device0.
func parseGrepOutput(text string) map[string]string {
	files := map[string]string{}
	for _, line := range plaintext.Lines(text) {
		file, rest, ok := strings.Cut(line, ":")
		if dir, isIIO := strings.CutSuffix(file, "/iio"); isIIO {
			file, rest, ok = strings.Cut(rest, ":")
			file = dir + "/iio:" + file
		}
		if ok {
			if old := files[file]; old != "" {
				rest = old + "\n" + rest
			}
			files[file] = rest
		}
	}
	return files
}

// kernelParam is a value below /proc/sys.
type kernelParam struct {
	name  string
	value match.Matcher
}

// readKernelParam parses a check of the section kernel-param, which needs a value.
func readKernelParam(e *Entry) Probe {
	k := kernelParam{name: e.Text("name", e.Name), value: e.Matcher("value", match.String)}
	if k.value.Empty() {
		e.Fail(e.Key, "a kernel-param needs a value")
	}
	if file := k.procFile(); !strings.HasPrefix(file, "/proc/sys/") || strings.ContainsRune(file, 0) || strings.Contains(file, "/../") {
		e.Fail(e.Key, "%q is not a parameter's name, like net.ipv4.ip_forward", k.name)
	}
	return k
}

// procFile returns the parameter's path. Without slashes in the name, its dots become slashes.
func (k kernelParam) procFile() string {
	if strings.Contains(k.name, "/") {
		return path.Join("/proc/sys", k.name)
	}
	return "/proc/sys/" + strings.ReplaceAll(k.name, ".", "/")
}

// Inspect reads the parameter on the board, and compares its value with the check.
func (k kernelParam) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "cat", k.procFile())
	if err != nil {
		return f, err
	}
	value := strings.TrimSpace(out)
	f.ExpectMatch("value", k.value, value, k.name+" is "+value)
	return f, nil
}

func (k kernelParam) Next() string {
	return "on the board: sysctl " + ShellLine([]string{k.name}) + "; it is set in /etc/sysctl.d of the image"
}

// module is a module of the kernel, loaded or built in.
type module struct {
	name    string
	loaded  bool
	version match.Matcher
}

// readModule parses a check of the section module. A bad name is a mistake in e.Err.
func readModule(e *Entry) Probe {
	m := module{name: moduleName(e.Text("name", e.Name)), version: e.Matcher("version", match.String), loaded: e.Bool("loaded", true)}
	if m.name == "" || strings.HasPrefix(m.name, ".") || strings.ContainsAny(m.name, "/ \n\x00") {
		e.Fail(e.Key, "%q is not a module's name", m.name)
	}
	return m
}

// moduleScript exits with 0 if the module exists, and prints its version if there is one.
const moduleScript = `test -d "/sys/module/$1" || exit 1; cat "/sys/module/$1/version" 2>/dev/null; true`

// Inspect checks that the module is loaded or built in, or is neither, and its version.
func (m module) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	r, err := s.Board.Run(ctx, "sh", "-c", moduleScript, "sh", m.name)
	if err != nil {
		return f, err
	}
	have := r.Status == 0
	f.expectState(m.name, have, m.loaded, " is loaded or built in", " is not loaded")
	if have && m.loaded {
		version := strings.TrimPrefix(strings.TrimSpace(string(r.Stdout)), "v")
		f.ExpectMatch("version", m.version, version, "version "+cmp.Or(version, "(it tells none)"))
	}
	return f, nil
}

func (m module) Next() string {
	return fmt.Sprintf("on the board: modprobe %s; dmesg | tail. Is it in the image (kernel-module-%s in Yocto)?", m.name, strings.ReplaceAll(m.name, "_", "-"))
}

// dmesg checks the kernel's messages since boot.
type dmesg struct{ has, never, ignore []*regexp.Regexp } // for one line each

// readDmesg parses a check of the section dmesg, which needs has or never.
func readDmesg(e *Entry) Probe {
	d := dmesg{has: e.readPatterns("has"), never: e.readPatterns("never"), ignore: e.readPatterns("ignore")}
	if len(d.has)+len(d.never) == 0 {
		e.Fail(e.Key, "a dmesg needs has or never: regular expressions for lines")
	}
	return d
}

// readPatterns returns a list attribute as regular expressions, or nil if one is invalid.
func (e *Entry) readPatterns(key string) []*regexp.Regexp {
	var all []*regexp.Regexp
	for i, text := range e.List(key) {
		re, err := regexp.Compile(text)
		if err != nil {
			e.Fail(e.Fields[key].Content[i], "%s: %v", key, err)
			return nil
		}
		all = append(all, re)
	}
	return all
}

// kernelLogScript prints the kernel's messages of this boot from the journal, or else by dmesg,
// whose buffer may have lost the first ones.
const kernelLogScript = `journalctl --dmesg --boot --quiet --no-pager --output=short-monotonic 2>/dev/null | grep . || dmesg`

// maxKernelLines is how many unwanted messages a report shows.
const maxKernelLines = 8

// Inspect reads the kernel's messages and checks them. If they are truncated, it fails the check.
func (d dmesg) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	r, err := s.Board.Run(ctx, "sh", "-c", kernelLogScript)
	if err != nil {
		return f, err
	}
	if r.Status != 0 || len(r.Stdout) == 0 { // a kernel that has started has said something
		return f, fmt.Errorf("read the kernel's messages: %s", DescribeResult(r))
	}
	d.checkMessages(&f, plaintext.Lines(string(r.Stdout)))
	if isCut, _ := truncatedOutputs(r); isCut {
		f.Expect(false, "all of the kernel's messages", "kernel messages: "+moreThan(len(r.Stdout)))
	}
	return f, nil
}

// checkMessages checks that each pattern of d.has matches a line, and that no line matches one of
// d.never, except for lines that match one of d.ignore. It shows at most maxKernelLines bad lines.
func (d dmesg) checkMessages(f *Finding, all []string) {
	for _, want := range d.has {
		i, saw := slices.IndexFunc(all, want.MatchString), "no message matches /"+want.String()+"/"
		if i >= 0 {
			saw = all[i]
		}
		f.Expect(i >= 0, "a message that matches /"+want.String()+"/", saw)
	}
	bad := slices.DeleteFunc(slices.Clone(all), func(line string) bool { return !matchesAny(line, d.never) || matchesAny(line, d.ignore) })
	if len(bad) == 0 {
		f.AddFact(fmt.Sprintf("%d messages of the kernel", len(all)))
		return
	}
	for _, p := range d.never {
		f.Want = append(f.Want, "no message that matches /"+p.String()+"/")
	}
	if more := len(bad) - maxKernelLines; more > 0 {
		bad = append(bad[:maxKernelLines], fmt.Sprintf("and %d more", more))
	}
	f.saw = append(f.saw, bad...)
}

func matchesAny(line string, patterns []*regexp.Regexp) bool {
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(line) })
}

func (d dmesg) Next() string { return "on the board: journalctl -k -b, or dmesg" }
