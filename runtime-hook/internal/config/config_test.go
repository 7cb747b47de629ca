package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	with := func(set func(*Config)) Config {
		c := Defaults()
		set(&c)
		return c
	}
	tests := []struct {
		text string
		want Config
	}{
		{"", Defaults()},
		{"# nothing\n\n[log]\n", Defaults()},
		{"csv-dir = '/data/lists'", with(func(c *Config) { c.CSVDir = "/data/lists" })},
		{"csv-dir = '/data/lists'\r\ndevices = false\r\n", with(func(c *Config) { c.CSVDir, c.Devices = "/data/lists", false })},
		{"[log]\nfile = ''", with(func(c *Config) { c.Log.File = "" })},
		{"log.file = \"/var/log/\\u0061.log\"", with(func(c *Config) { c.Log.File = "/var/log/a.log" })},
		{"[runtime]\nruntimes = [\n 'crun', # first\n '/opt/runc',\n]", with(func(c *Config) { c.Runtime.Runtimes = []string{"crun", "/opt/runc"} })},
		{"ignore = [ '**/*.so', # of all\n '/dev/dri/card[1-9]' ]", with(func(c *Config) { c.Ignore = []string{"**/*.so", "/dev/dri/card[1-9]"} })},
		{"accept-nvidia-visible-devices-as-volume-mounts = true\naccept-nvidia-visible-devices-envvar-when-unprivileged = false", with(func(c *Config) { c.VolumeMounts, c.Variable = true, false })},
		{"compat-dir = ''", with(func(c *Config) { c.CompatDir = "" })},
		{"compat-dir = '/opt/compat'", with(func(c *Config) { c.CompatDir = "/opt/compat" })},
		{"[cdi]\nversion = '0.5.0'", with(func(c *Config) { c.CDI.Version = "0.5.0" })},
	}
	for _, tt := range tests {
		got, faults := parseTOML([]byte(tt.text))
		if len(faults) > 0 || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("parse(%q) = %+v, %v; want %+v", tt.text, got, faults, tt.want)
		}
	}
}

func TestParseFaults(t *testing.T) {
	tests := []struct {
		text string
		want []string // "LINE why" begins so
	}{
		{"\nspeed = 3", []string{`2 unknown key "speed"`}},
		{"devices = true\nwhole-folders = true", []string{`2 unknown key "whole-folders"`}},
		{"[log]\ncolour = 1\n[tree]\nx = 2\n", []string{`2 unknown key "log.colour"`, `3 unknown key "tree"`}},
		{"\n\ndevices = 'yes'", []string{"3 toml: cannot decode TOML string into struct field config.Config.Devices"}},
		{"devices = true\ndevices = false", []string{"0 toml: key devices is already defined"}},
		{"csv-dir = 3", []string{"1 toml: "}},
		{"csv-dir = ['/x']", []string{"0 toml: cannot decode TOML array"}},
		{"csv-dir = ''", []string{`1 csv-dir: "" is not an absolute path`}},
		{"csv-dir = 'lists'\n[log]\nfile = 'loud'", []string{`1 csv-dir: "lists" is not an absolute path`, "3 log.file: "}},
		{"csv-dir = '/etc/../lists'", []string{"1 csv-dir: "}},
		{"# file = '/x'\n[log]\n\nfile = 'loud'", []string{`4 log.file: "loud" is not an absolute path`}},
		{"[log]\nlevel = 'debug'\n[board]\ncuda = '12.6'", []string{`2 unknown key "log.level"`, `3 unknown key "board"`}},
		{"log.file = 'hook.log'", []string{"1 log.file: "}},
		{"[log]\nfile = 2020-01-01", []string{"0 toml: a value of another type"}},
		{"[[log]]\nfile = '/x'", []string{"0 toml: "}},
		{"[runtime]\nruntimes = 'runc'", []string{"2 toml: "}},
		{"[runtime]\nruntimes = []", []string{"2 runtime.runtimes: is empty"}},
		{"[runtime]\nruntimes = [1]", []string{"2 toml: "}},
		{"[runtime]\nruntimes = ['./runc']", []string{"2 runtime.runtimes: \"./runc\" is neither"}},
		{"ignore = '**/a'", []string{"1 toml: "}},
		{"ignore = ['a']", []string{`1 ignore: "a" is neither a pattern of an absolute path`}},
		{"ignore = ['']", []string{"1 ignore: "}},
		{"ignore = ['**/']", []string{"1 ignore: "}},
		{"ignore = ['**//a']", []string{"1 ignore: "}},
		{"ignore = ['**/tegra/a*']", []string{"1 ignore: "}},
		{"ignore = ['/a[']", []string{"1 ignore: "}},
		{"ignore = [" + strings.Repeat("'/a',", 257) + "]", []string{"1 ignore: has more than 256"}},
		{"compat-dir = 'compat'", []string{`1 compat-dir: "compat" is not an absolute path`}},
		{"[cdi]\nversion = '0.6.0'", []string{`2 cdi.version: unknown "0.6.0" (have 0.5.0, 0.7.0)`}},
		{"[cdi]\nversion = 0.5", []string{"2 toml: "}},
		{"devices = true\ncsv-dir = ", []string{"2 toml: "}},
		{"\n\nx", []string{"3 toml: "}},
		{"\n[log", []string{"2 toml: "}},
		{"\ncsv-dir = '/\xff'", []string{"2 toml: "}},
	}
	for _, tt := range tests {
		_, faults := parseTOML([]byte(tt.text))
		ok := len(faults) == len(tt.want)
		for i := 0; ok && i < len(faults); i++ {
			ok = strings.HasPrefix(fmt.Sprint(faults[i].Line, " ", faults[i].Why), tt.want[i])
		}
		if !ok {
			t.Errorf("parse(%q) finds %v; want %q", tt.text, faults, tt.want)
		}
	}
}

func TestRead(t *testing.T) {
	regular := func(text string, mode os.FileMode) func(string) error {
		return func(p string) error {
			if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
				return err
			}
			return os.Chmod(p, mode)
		}
	}
	owned := func(uid int) func(string) error {
		return func(p string) error {
			if err := regular("", 0o644)(p); err != nil {
				return err
			}
			return os.Chown(p, uid, uid)
		}
	}
	tests := []struct {
		name string
		put  func(string) error
		want string // of the error, after the file's name
	}{
		{"none", func(string) error { return nil }, ""},
		{"good", regular("devices = true", 0o644), ""},
		{"a byte order mark", regular("\uFEFFdevices = true", 0o644), ""},
		{"a fault", regular("\ndevices = 1", 0o644), ":2: toml: cannot decode TOML integer into struct field config.Config.Devices of type bool; next: correct or delete this line, or remove the file for the defaults"},
		{"for all to write", regular("", 0o646), ": others than its owner may write to it"},
		{"for a group to write", regular("", 0o664), ": others than its owner may write to it"},
		{"large", regular(strings.Repeat("#\n", maxBytes), 0o644), ": larger than 64 KiB"},
		{"a folder", func(p string) error { return os.Mkdir(p, 0o755) }, ": not a regular file"},
		{"a FIFO", func(p string) error { return syscall.Mkfifo(p, 0o644) }, ": not a regular file"},
		{"a loop", func(p string) error { return os.Symlink("hook.toml", p) }, ": too many levels"},
		{"another's", owned(1000), ": it belongs to another user than root"},
		{"nobody's", owned(nobody), ": it belongs to another user than root"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.name, "'s") && os.Getuid() != 0 {
				t.Skip("needs root, to give a file away")
			}
			root := t.TempDir()
			file := filepath.Join(root, File)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.put(file); err != nil {
				t.Fatal(err)
			}
			c, err := Read(root)
			switch {
			case tt.want == "" && (err != nil || !reflect.DeepEqual(c, Defaults())):
				t.Errorf("Read = %+v, %v; want the defaults", c, err)
			case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), file+tt.want)):
				t.Errorf("Read = %v; want %s%s", err, file, tt.want)
			}
		})
	}
}

// Whatever the file holds, each fault has a line of it, and what is let through can be used.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"csv-dir = '/x'", "[log]\nfile = ''", "[runtime]\nruntimes = ['runc', \"\\u0041\"]", "[cdi]\nversion = 0.5", "\"log\".'file' = '/x'", "[[x]]\n", "x = {a = [1, 2], b = 1979-05-27T07:32:00Z}", "x = \"\"\"\n\"\"\"", "[", "\xef\xbb\xbf"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, faults := parseTOML(data)
		for _, x := range faults {
			if lines := strings.Count(string(data), "\n") + 1; x.Line < 0 || x.Line > lines || x.Why == "" {
				t.Errorf("fault %+v in %d lines", x, lines)
			}
		}
		if len(faults) > 0 {
			return
		}
		if !filepath.IsAbs(c.CSVDir) || len(c.Runtime.Runtimes) == 0 {
			t.Errorf("let through %+v", c)
		}
	})
}

// The file that boards get shows what holds without it.
func TestShippedFile(t *testing.T) {
	data, err := os.ReadFile("../../../recipes/slipway-hook/files/hook.toml")
	if err != nil {
		t.Fatal(err)
	}
	told := Defaults()
	told.CDI.Version = "0.5.0"
	told.Ignore = []string{"**/libnvinfer*", "/dev/dri/card1"}
	shown := regexp.MustCompile(`(?m)^#([a-z-]+ = )`).ReplaceAll(data, []byte("$1"))
	for text, want := range map[string]Config{string(data): Defaults(), string(shown): told} {
		if got, faults := parseTOML([]byte(text)); len(faults) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("hook.toml gives %+v, %v; want %+v", got, faults, want)
		}
	}
	for _, key := range regexp.MustCompile(`toml:"([a-z-]+)"`).FindAllSubmatch(source(t), -1) {
		if isTable := strings.Contains(string(data), "\n["+string(key[1])+"]\n"); !isTable && !strings.Contains(string(data), "\n#"+string(key[1])+" = ") {
			t.Errorf("hook.toml does not show %s", key[1])
		}
	}
}

// source is the file with the names of all settings.
func source(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("config.go")
	if err != nil {
		t.Fatal(err)
	}
	return data
}
