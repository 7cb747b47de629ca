package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An image's names do not write lines of their own, nor what a terminal obeys.
func TestWriteOfForgedNames(t *testing.T) {
	forged := "/etc/x\n/: amd64, 900 files, 300 programs, 5 MiB read\nno findings\x1b[2K\x1b]0;t\a\u202e\u009b1m\tnext: nothing"
	r := Report{System: "a\nb\x1b", Arch: "amd64", Findings: []Finding{{Rule: "link", Path: forged, Saw: "leads to " + forged, Next: "n"}}}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(b.String()), "\n"); len(lines) != 3 {
		t.Errorf("it has %d lines; want 3:\n%s", len(lines), b.String())
	}
	if strings.ContainsAny(b.String(), "\x1b\a\u202e\u009b\t") {
		t.Errorf("it has control characters: %q", b.String())
	}
}

func TestFolderWithoutARoot(t *testing.T) {
	for name, tt := range map[string]struct {
		make []string // folders, and files without a slash at their end
		want string
	}{
		"an empty folder":        {nil, "no root file system here"},
		"a folder etc alone":     {[]string{"etc/"}, "no root file system here"},
		"a folder usr alone":     {[]string{"usr/bin/"}, "no root file system here"},
		"files":                  {[]string{"etc", "usr"}, "no root file system here"},
		"one folder too high":    {[]string{"rootfs/etc/", "rootfs/usr/"}, "no root file system here"},
		"a root":                 {[]string{"etc/", "usr/"}, ""},
		"a root of BusyBox":      {[]string{"etc/", "bin/sh"}, ""},
		"a link that is no root": {[]string{"etc/", "usr>/nowhere"}, "no root file system here"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, at := range tt.make {
				path, to, isLink := strings.Cut(filepath.Join(dir, at), ">")
				err := os.MkdirAll(filepath.Dir(path), 0o755)
				switch {
				case err != nil:
				case isLink:
					err = os.Symlink(to, path)
				case strings.HasSuffix(at, "/"):
					err = os.MkdirAll(path, 0o755)
				default:
					err = os.WriteFile(path, nil, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			found, err := Find(dir, "build")
			if err == nil {
				_, err = Audit(t.Context(), found, Options{})
			}
			if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "\nnext: ls ")) {
				t.Errorf("Audit = %v; want %q", err, tt.want)
			}
		})
	}
}

func TestPackedImage(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, want := range map[string]string{"a b.img.zst": "unzstd 'a b.img.zst'", "d.img.XZ": "unxz -k d.img.XZ"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(name, "build"); err == nil || !strings.HasSuffix(err.Error(), "\nnext: "+want+"  # then audit the unpacked image") {
			t.Errorf("Find(%q) = %v; want %q", name, err, want)
		}
	}
}
