package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// storeFiles are the files of the bench's artifact, in eighths of its size. The second version
// has another container.
var storeFiles = []struct {
	kind, name string
	eighths    int64
}{{images.DiskImage, "disk.img", 5}, {images.Bundle, "update.raucb", 2}, {images.Container, "app.oci.tar", 1}}

// storeSteps are what each tool does, one after the other, with an empty registry.
var storeSteps = []struct{ name, verb, version string }{
	{"push first", "push", "v1"},
	{"push again", "push", "v1"},
	{"push second version", "push", "v2"},
	{"pull first", "pull", "v1"},
	{"pull again", "pull", "v1"},
	{"pull second version", "pull", "v2"},
}

// storeTools are the commands for a registry. The limit sends the same bytes to a server that
// writes them to the same disk, without digests, and does only the first steps.
var storeTools = map[string]map[string]string{
	"ours":  {"push": "{slipway} push {top}/{version} {repo}:{version}", "pull": "{slipway} pull {repo}:{version} --into={top}/got"},
	"oras":  {"push": "oras push --plain-http --no-tty {repo}:{version} artifact.json {files}", "pull": "oras pull --plain-http --no-tty -o {top}/got {repo}:{version}"},
	"limit": {"push": "curl -sSf -T {list} http://{repo}/", "pull": "curl -sSf --create-dirs -o {top}/got/#1 http://{repo}/{list}"},
}

// storeFolder are the steps for a folder, beside cp.
var storeFolder = [][2]string{
	{"ours folder push first", "{slipway} push {top}/v1 {top}/folder:v1"},
	{"ours folder push second version", "{slipway} push {top}/v2 {top}/folder:v2"},
	{"ours folder pull first", "{slipway} pull {top}/folder:v2 --into={top}/got"},
	{"limit folder push first", "cp -r {top}/v1 {top}/copy"},
	{"limit folder push on disk", `sh -c "cp -r {top}/v1 {top}/copy/again && sync -f {top}/copy"`}, // as ours is, at the end
}

func storeRatios() []ratio {
	all := []ratio{
		{name: "push_limit_over_ours", over: "limit push first", under: "ours push first"},
		{name: "pull_limit_over_ours", over: "limit pull first", under: "ours pull first"},
		{name: "folder_cp_over_ours", over: "limit folder push first", under: "ours folder push first"},
		{name: "folder_cp_and_sync_over_ours", over: "limit folder push on disk", under: "ours folder push first"},
	}
	for _, step := range storeSteps {
		all = append(all, ratio{name: strings.ReplaceAll(step.name, " ", "_") + "_oras_over_ours", over: "oras " + step.name, under: "ours " + step.name})
	}
	return all
}

// storeBench is the measurement, and its figures by step.
type storeBench struct {
	*session
	words   []string // for strings.NewReplacer
	rows    []row
	carried map[string]int64 // bytes, by the names of the rows
}

// measureStore pushes an artifact to Debian's docker-registry and pulls it, by Slipway, by ORAS
// and by plain HTTP. A TCP relay counts the bytes. A version that the registry has already, and a second version,
// follow. The same goes for a folder.
func measureStore(ctx context.Context, s *session) error {
	if _, err := exec.LookPath("oras"); err != nil {
		return fmt.Errorf("%w\nnext: go install oras.land/oras/cmd/oras@v1.2.3", err)
	}
	if err := s.buildProgram(ctx, ".", "./magefiles/slipway"); err != nil {
		return err
	}
	var names []string
	for _, f := range storeFiles {
		names = append(names, f.name)
	}
	b := &storeBench{session: s, carried: map[string]int64{}, words: []string{
		"{slipway}", plaintext.Quote(s.program), "{top}", plaintext.Quote(s.dir), "{files}", strings.Join(names, " "), "{list}", "{" + strings.Join(names, ",") + "}",
	}}
	for version := range 2 {
		if err := b.makeVersion(ctx, version, int64(s.MiB)<<20); err != nil {
			return err
		}
	}
	for range s.Rounds {
		for _, work := range []func(context.Context) error{b.ours, b.oras, b.limit, b.folders} {
			err := work(ctx)
			for _, name := range []string{"registry", "got", "folder", "copy"} {
				err = errors.Join(err, os.RemoveAll(b.path(name)))
			}
			if err != nil {
				return err
			}
		}
	}
	var figures []figure
	for _, step := range []string{"pull again", "pull second version"} {
		figures = append(figures, figure{strings.ReplaceAll(step, " ", "_") + "_bytes_ours_over_oras", float64(b.carried["ours "+step]) / float64(b.carried["oras "+step])})
	}
	for _, r := range b.rows {
		fmt.Fprintf(s.w, "%s: %.2f MB on the line\n", r.name, float64(b.carried[r.name])/1e6)
	}
	return s.print(b.rows, storeRatios(), figures...)
}

func (b *storeBench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *storeBench) makeVersion(ctx context.Context, version int, size int64) error {
	dir := b.path(fmt.Sprint("v", version+1))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	a := images.Artifact{Board: "virt", Arch: "amd64", Key: hex.EncodeToString([]byte{byte(version), 1, 2, 3, 4, 5, 6}), Built: time.Date(2026, 11, 1+version, 0, 0, 0, 0, time.UTC)}
	var files []images.File
	for i, f := range storeFiles {
		seed := byte(i + 1)
		if f.kind == images.Container {
			seed += byte(10 * version)
		}
		if err := makeFile(filepath.Join(dir, f.name), seed, size*f.eighths/8); err != nil {
			return err
		}
		files = append(files, images.File{Kind: f.kind, Name: f.name})
	}
	return saveArtifact(ctx, a, dir, files...)
}

// step times one command, in the folder of a version. It syncs before, so that no step pays
// for the one before.
func (b *storeBench) step(ctx context.Context, name, version, command string, more ...string) error {
	unix.Sync()
	i := slices.IndexFunc(b.rows, func(r row) bool { return r.name == name })
	if i < 0 {
		i, b.rows = len(b.rows), append(b.rows, row{name: name})
	}
	words := strings.NewReplacer(append(slices.Clone(b.words), more...)...)
	if err := b.rows[i].measureOnce(ctx, variant{command: words.Replace(command), dir: b.path(version)}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// steps does the steps of a tool, with a server.
func (b *storeBench) steps(ctx context.Context, tool string, port int, path string) error {
	l, err := listenLine(port, 0)
	if err != nil {
		return err
	}
	defer l.Close()
	repo := fmt.Sprintf("127.0.0.1:%d%s", l.port(), path)
	for _, step := range storeSteps {
		if tool == "limit" && !strings.HasSuffix(step.name, "first") {
			continue
		}
		name, before := tool+" "+step.name, l.carried.Load()
		if err := b.step(ctx, name, step.version, storeTools[tool][step.verb], "{repo}", repo, "{version}", step.version); err != nil {
			return err
		}
		b.carried[name] = l.carried.Load() - before
	}
	return nil
}

func (b *storeBench) compare(ctx context.Context) error {
	return run.Run(ctx, run.Command{Argv: []string{"diff", "-r", b.path("got"), b.path("v2")}})
}

func (b *storeBench) folders(ctx context.Context) error {
	for _, step := range storeFolder {
		if err := b.step(ctx, step[0], ".", step[1]); err != nil {
			return err
		}
	}
	return b.compare(ctx)
}

func (b *storeBench) limit(ctx context.Context) error {
	dir := b.path("registry")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Join(dir, filepath.Base(r.URL.Path))
		if r.Method == http.MethodGet {
			http.ServeFile(w, r, name)
			return
		}
		f, err := os.Create(name)
		if err == nil {
			_, err = io.Copy(f, r.Body)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(listener)
	defer server.Close()
	return b.steps(ctx, "limit", listener.Addr().(*net.TCPAddr).Port, "")
}

func (b *storeBench) ours(ctx context.Context) error { return b.withRegistry(ctx, "ours") }
func (b *storeBench) oras(ctx context.Context) error { return b.withRegistry(ctx, "oras") }

// withRegistry does the steps of a tool with an empty docker-registry.
func (b *storeBench) withRegistry(ctx context.Context, tool string) error {
	at, err := run.FreePort()
	if err != nil {
		return err
	}
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: \"127.0.0.1:%d\"}\n", b.path("registry"), at)
	if err := os.WriteFile(b.path("config.yml"), []byte(config), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "docker-registry", "serve", b.path("config.yml"))
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "REGISTRY_") })
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	wait := run.Command{Argv: []string{"curl", "-sS", "-o", b.path("answer"), "--retry", "30", "--retry-connrefused", "--retry-delay", "1", fmt.Sprint("http://127.0.0.1:", at)}}
	if err := run.Run(ctx, wait); err != nil {
		return err
	}
	return errors.Join(b.steps(ctx, tool, at, "/bench/images"), b.compare(ctx))
}
