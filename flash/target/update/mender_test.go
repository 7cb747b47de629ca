package update_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/target/update"
	"slipway/flash/target/update/updatetest"
)

// Debian has no package of Mender's client. So this program simulates it under its name, with
// the outputs of Mender's documentation of release 4.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "mender-update" {
		os.Exit(menderUpdate(os.Args[1:]))
	}
	os.Unsetenv("SSH_AUTH_SOCK")
	os.Exit(m.Run())
}

func menderUpdate(args []string) int {
	dir := os.Getenv("TMPDIR") // as the server sets it for its sessions
	read := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(dir, name))
		return string(data)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			panic(err)
		}
	}
	switch args[0] {
	case "show-artifact":
		fmt.Println(read("artifact"))
		return 0
	case "install":
		payload, err := fetchArtifact(args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "Installation failed:", err)
			return 1
		}
		write("other", payload)
		write("pending", "yes")
		fmt.Println("Installing artifact...\n100%\nInstalled, but not committed.\nUse 'commit' to update, or 'rollback' to roll back the update.\nAt least one payload requested a reboot of the device it updated.")
		return 0
	case "commit", "rollback":
		if read("pending") != "yes" {
			fmt.Fprintln(os.Stderr, "No update in progress")
			return 2
		}
		if args[0] == "rollback" {
			write("pending", "")
		}
		return 0
	}
	return 1
}

// fetchArtifact reads an artifact in one pass as Mender does, for the device type "board".
func fetchArtifact(url string) (string, error) {
	r, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return "", errors.Join(err, errors.New(r.Status))
	}
	if !strings.Contains(string(data), "for board") {
		return "", errors.New("artifact device type doesn't match")
	}
	_, payload, _ := strings.Cut(string(data), "payload ")
	payload, _, _ = strings.Cut(payload, "\x00")
	return payload, nil
}

// makeArtifact writes a Mender Artifact of version 3.
func makeArtifact(t *testing.T, device, payload string) string {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(makeTar(t, "header-info", fmt.Sprintf(`{"artifact_provides": {"artifact_name": "release-2"}, "artifact_depends": {"device_type": [%q]}}`, device)))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "new.mender")
	data := makeTar(t, "version", `{"format":"mender","version":3}`, "manifest", "for "+device, "manifest.sig", "x", "header.tar.gz", packed.String(), "data/0000.tar.gz", "payload "+payload)
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func makeTar(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o600, Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestMender(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "mender-update")); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(dir, name))
		return string(data)
	}
	path := dir + ":" + os.Getenv("PATH")
	updatetest.Run(t, updatetest.Board{
		Conn: updatetest.Connect(t, fmt.Sprintf("SetEnv PATH=%s TMPDIR=%s HOME=%[2]s", path, dir)), Name: "Mender",
		Good: makeArtifact(t, "board", "system 2"), New: "system 2",
		Refused: map[string]string{"another board's": makeArtifact(t, "toaster", "crumbs")},
		Running: func() string { return "system 1" },
		Other:   func() string { return read("other") },
		Restart: func() {},
	})
}

func TestOpenMender(t *testing.T) {
	b, err := update.OpenBundle(t.Context(), makeArtifact(t, "board", "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if want := (update.Claims{Compatible: "board", Version: "release-2", Signer: "a key without a name"}); b.Kind != update.Mender || b.Claims != want {
		t.Errorf("OpenBundle() = %s %+v; want %+v", b.Kind, b.Claims, want)
	}
	version := []string{"version", `{"format":"mender","version":3}`}
	for name, files := range map[string][]string{
		"no header":       version,
		"no header-info":  append(version, "header.tar.gz", "x"),
		"another version": {"version", "", "readme", ""},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, makeTar(t, files...), 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err := update.OpenBundle(t.Context(), file); err == nil {
			t.Errorf("%s: OpenBundle() = %+v; want an error", name, b)
		}
	}
}
