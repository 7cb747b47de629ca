package audit

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// A board over SSH shows the same faults as its folder here, but for what each board makes
// for itself.
func TestBoard(t *testing.T) {
	p := plantBase(t)
	p.link("usr/bin/hard-link", "good")
	if err := os.Remove(filepath.Join(p.dir, "usr/bin/hard-link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(p.dir, "usr/bin/good"), filepath.Join(p.dir, "usr/bin/hard-link")); err != nil {
		t.Fatal(err)
	}
	opt := Options{SM: "87"}
	conn := boardtest.Connect(t)
	r, err := auditBoard(t.Context(), conn, p.dir, opt)
	if err != nil || len(r.Findings) > 0 || r.Programs < 4 {
		t.Fatalf("without a fault: %+v, %v", r, err)
	}
	for _, f := range faults {
		f.plant(p)
	}
	folder, err := openFolder(p.dir)
	want := slices.DeleteFunc(say(auditOne(t, []*tree{folder}, err, opt).Findings), func(line string) bool {
		return strings.HasPrefix(line, "host key ") || strings.HasPrefix(line, "machine id ")
	})
	r, err = auditBoard(t.Context(), conn, p.dir, opt)
	if diff := cmp.Diff(want, say(r.Findings)); diff != "" || err != nil {
		t.Errorf("with GNU tar, %v (-want +got):\n%s", err, diff)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox")
	}
	bin := t.TempDir()
	if err := os.Symlink(busybox, filepath.Join(bin, "tar")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH")) // a new server hands it on
	r, err = auditBoard(t.Context(), boardtest.Connect(t), p.dir, opt)
	if diff := cmp.Diff(want, say(r.Findings)); diff != "" || err != nil {
		t.Errorf("with BusyBox's tar, %v (-want +got):\n%s", err, diff)
	}
}

// A board without tar, and one whose connection ends, are errors.
func TestBoardFails(t *testing.T) {
	conn := boardtest.Connect(t)
	if _, err := auditBoard(t.Context(), conn, "/nonexistent", Options{}); err == nil {
		t.Error("a folder that is not there is audited")
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("Ctrl-C"))
	if _, err := auditBoard(ctx, conn, t.TempDir(), Options{}); err == nil || !strings.Contains(err.Error(), "Ctrl-C") {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

// Files that only root may read are counted. Any other error of tar fails the audit.
func TestBoardWithTarErrors(t *testing.T) {
	const denied = "tar: ./root/a: Cannot open: Permission denied\n"
	for said, want := range map[string]string{
		strings.Repeat(denied, 40_000) + "tar: Exiting with failure status due to previous errors\n": "",
		denied + "tar: ./b: Read error at byte 0: Input/output error\n":                              "Input/output error",
		"": "exit status 2",
	} {
		p, dir := plantBase(t), t.TempDir()
		sshtest.PlaceFile(t, dir+"/errors", said, 0o644)
		sshtest.PlaceFile(t, dir+"/tar", "#!/bin/sh\ncat "+dir+"/errors >&2\n/bin/tar -cf - -C "+p.dir+" .\nexit 2\n", 0o755)
		r, err := auditBoard(t.Context(), boardtest.Connect(t, "SetEnv HOME="+dir+" PATH="+dir+":/usr/bin:/bin"), "/", Options{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && r.Unread != 40_000 {
			t.Errorf("%.60q: %d unread, %v; want %q", said, r.Unread, err, want)
		}
	}
}

// A board that sends no archive, or a part of one, and ends with status 0 has no audit.
func TestBoardSendsAPart(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"etc/", "usr/", "usr/bin/"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	entries := b.String()
	for name, tt := range map[string]struct{ archive, want string }{
		"nothing":          {"", "unexpected EOF"},
		"an end alone":     {strings.Repeat("\x00", 1024), "no root file system here"},
		"no end":           {entries, "unexpected EOF"},
		"half an end":      {entries + strings.Repeat("\x00", 512), "unexpected EOF"},
		"a part of a name": {entries[:len(entries)-100], "unexpected EOF"},
		"all":              {entries + strings.Repeat("\x00", 1024), ""},
	} {
		dir := t.TempDir()
		sshtest.PlaceFile(t, dir+"/archive", tt.archive, 0o644)
		sshtest.PlaceFile(t, dir+"/tar", "#!/bin/sh\nexec cat "+dir+"/archive\n", 0o755)
		r, err := auditBoard(t.Context(), boardtest.Connect(t, "SetEnv HOME="+dir+" PATH="+dir+":/usr/bin:/bin"), "/", Options{})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %d files, %v; want %q", name, r.Files, err, tt.want)
		}
	}
}

// FuzzTar: an archive from a board gives a tree or an error, and its names stay inside.
func FuzzTar(f *testing.F) {
	var good bytes.Buffer
	w := tar.NewWriter(&good)
	for _, h := range []*tar.Header{
		{Name: "./etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644, Size: 3},
		{Name: "./etc/link", Typeflag: tar.TypeSymlink, Linkname: "passwd"},
		{Name: "./etc/hard", Typeflag: tar.TypeLink, Linkname: "./etc/passwd"},
		{Name: "../../escape", Typeflag: tar.TypeReg, Mode: 0o755, Size: 0},
	} {
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add(good.Bytes()[:700])
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := readTar(t.Context(), "x", bytes.NewReader(data))
		if err != nil {
			return
		}
		defer tree.Close()
		for name := range tree.files {
			if !filepath.IsLocal(name) {
				t.Errorf("name %q leads outside", name)
			}
		}
		if _, err := Run(t.Context(), tree, Options{}); err != nil {
			t.Logf("an error is an answer: %v", err)
		}
	})
}
