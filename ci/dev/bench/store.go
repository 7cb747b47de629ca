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
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/trust"
	"slipway/images"
	"slipway/layers/run"
)

// storeFiles are the files of the bench's artifact, in parts of its size. The second version
// has another container.
var storeFiles = []struct {
	kind, name string
	parts      int64 // of 8
}{{images.DiskImage, "disk.img", 5}, {images.Bundle, "update.raucb", 2}, {images.Container, "app.oci.tar", 1}}

const storeBoard = "virt"

// Store pushes an artifact to Debian's docker-registry and pulls it, by Slipway, by ORAS and
// by plain HTTP, which is the limit. A proxy counts the bytes. A second version, and one that
// is there already, follow. The same goes for a folder, where cp is the limit.
func Store(ctx context.Context, w io.Writer, o Options) error {
	if o.Only != "" {
		return errors.New("--only is not for store: its steps need one another")
	}
	o = o.withDefaults(3, 1024)
	for _, program := range []string{"docker-registry", "oras"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w\nnext: apt-get install docker-registry, go install oras.land/oras/cmd/oras@v1.2.3", err)
		}
	}
	return keepOnFailure(ctx, "bench-store-", func(dir string) (err error) {
		b := &storeBench{w: w, times: map[string][]time.Duration{}, up: map[string]int64{}, down: map[string]int64{}}
		if b.dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		if err := b.prepare(ctx, int64(o.MiB)<<20); err != nil {
			return err
		}
		for range o.Rounds {
			if err := b.round(ctx); err != nil {
				return err
			}
		}
		return b.print()
	})
}

// storeBench is the measurement, and its figures by step.
type storeBench struct {
	w        io.Writer
	dir      string
	program  string
	steps    []string
	times    map[string][]time.Duration
	up, down map[string]int64
	line     *countedLine
}

func (b *storeBench) path(names ...string) string {
	return filepath.Join(append([]string{b.dir}, names...)...)
}

func (b *storeBench) prepare(ctx context.Context, size int64) error {
	b.program = b.path("slipway")
	if err := run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", b.program, "./magefiles/slipway"}}); err != nil {
		return err
	}
	for version := range 2 {
		if err := b.makeVersion(ctx, version, size); err != nil {
			return err
		}
	}
	return nil
}

func (b *storeBench) makeVersion(ctx context.Context, version int, size int64) error {
	dir := b.path(fmt.Sprint("v", version+1))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	a := images.Artifact{Board: storeBoard, Arch: "amd64", Key: hex.EncodeToString([]byte{byte(version), 1, 2, 3, 4, 5, 6}), Built: time.Date(2026, 11, 1+version, 0, 0, 0, 0, time.UTC)}
	for i, f := range storeFiles {
		seed, path := byte(i+1), filepath.Join(dir, f.name)
		if f.kind == images.Container {
			seed += byte(10 * version)
		}
		if err := makeFile(path, seed, size*f.parts/8); err != nil {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		sum, err := trust.Digest(ctx, in, func(int64) {})
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
		a.Files = append(a.Files, images.File{Kind: f.kind, Name: f.name, SizeBytes: size * f.parts / 8, SHA256: sum})
	}
	return a.Save(dir)
}

// measure times one step, and counts its bytes.
func (b *storeBench) measure(ctx context.Context, name, dir string, argv ...string) error {
	return b.measureWork(name, func() error {
		return run.Run(ctx, run.Command{Argv: argv, Dir: dir})
	})
}

func (b *storeBench) measureWork(name string, work func() error) error {
	unix.Sync() // so that no step pays for the one before
	up, down, began := b.line.up.Load(), b.line.down.Load(), time.Now()
	if err := work(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !slices.Contains(b.steps, name) {
		b.steps = append(b.steps, name)
	}
	b.times[name] = append(b.times[name], time.Since(began))
	b.up[name], b.down[name] = b.line.up.Load()-up, b.line.down.Load()-down
	return nil
}

// round measures each step once. What each tool wrote is removed before the next.
func (b *storeBench) round(ctx context.Context) error {
	for _, measure := range []func(context.Context) error{b.ours, b.oras, b.limit, b.folders} {
		err := measure(ctx)
		for _, name := range []string{"registry", "got", "folder", "copy"} {
			err = errors.Join(err, os.RemoveAll(b.path(name)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *storeBench) ours(ctx context.Context) error {
	return b.withRegistry(ctx, func(repo string) error {
		push := func(step, version string) error {
			return b.measure(ctx, "ours push "+step, b.dir, b.program, "push", b.path(version), repo+":"+version)
		}
		pull := func(step, version, into string) error {
			return b.measure(ctx, "ours pull "+step, b.dir, b.program, "pull", repo+":"+version, "--into="+b.path("got", into))
		}
		for _, err := range []error{
			push("first", "v1"), push("again", "v1"), push("second version", "v2"),
			pull("first", "v1", "a"), pull("again", "v1", "a"), pull("second version", "v2", "a"),
		} {
			if err != nil {
				return err
			}
		}
		return b.compare(ctx, b.path("got", "a"))
	})
}

func (b *storeBench) oras(ctx context.Context) error {
	return b.withRegistry(ctx, func(repo string) error {
		push := func(step, version string) error {
			argv := []string{"oras", "push", "--plain-http", "--no-tty", repo + ":" + version, images.ArtifactName}
			for _, f := range storeFiles {
				argv = append(argv, f.name)
			}
			return b.measure(ctx, "oras push "+step, b.path(version), argv...)
		}
		pull := func(step, version, into string) error {
			return b.measure(ctx, "oras pull "+step, b.dir, "oras", "pull", "--plain-http", "--no-tty", "-o", b.path("got", into), repo+":"+version)
		}
		for _, err := range []error{
			push("first", "v1"), push("again", "v1"), push("second version", "v2"),
			pull("first", "v1", "a"), pull("again", "v1", "a"), pull("second version", "v2", "a"),
		} {
			if err != nil {
				return err
			}
		}
		return b.compare(ctx, b.path("got", "a"))
	})
}

func (b *storeBench) compare(ctx context.Context, got string) error {
	return run.Run(ctx, run.Command{Argv: []string{"diff", "-r", got, b.path("v2")}})
}

// limit sends the same bytes by plain HTTP to a server that writes them to the same disk, and
// fetches them.
func (b *storeBench) limit(ctx context.Context) error {
	dir := b.path("got")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Join(dir, filepath.Base(r.URL.Path))
		if r.Method == http.MethodGet {
			http.ServeFile(w, r, name)
			return
		}
		if err := copyToFile(name, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(listener)
	defer server.Close()
	if b.line, err = listenCounted(listener.Addr().String()); err != nil {
		return err
	}
	defer b.line.Close()
	address := "http://" + b.line.Addr().String() + "/"
	err = b.measureWork("limit push first", func() error {
		for _, f := range storeFiles {
			if err := sendFile(ctx, address+f.name, b.path("v1", f.name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.measureWork("limit pull first", func() error {
		for _, f := range storeFiles {
			if err := fetchFile(ctx, address+f.name, b.path("got", "again-"+f.name)); err != nil {
				return err
			}
		}
		return nil
	})
}

func copyToFile(name string, in io.Reader) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}

func sendFile(ctx context.Context, address, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, address, f)
	if err != nil {
		return err
	}
	return doRequest(req, func(io.Reader) error { return nil })
}

func fetchFile(ctx context.Context, address, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	return doRequest(req, func(body io.Reader) error { return copyToFile(name, body) })
}

func doRequest(req *http.Request, read func(io.Reader) error) error {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return read(res.Body)
}

// folders measures a folder beside cp.
func (b *storeBench) folders(ctx context.Context) error {
	var err error
	if b.line, err = listenCounted("127.0.0.1:1"); err != nil { // nothing travels
		return err
	}
	defer b.line.Close()
	ref := b.path("folder")
	for _, step := range [][]string{
		{"ours folder push first", b.program, "push", b.path("v1"), ref + ":v1"},
		{"ours folder push second version", b.program, "push", b.path("v2"), ref + ":v2"},
		{"ours folder pull first", b.program, "pull", ref + ":v2", "--into=" + b.path("got")},
		{"limit folder push first", "cp", "-r", b.path("v1"), b.path("copy")},
	} {
		if err := b.measure(ctx, step[0], b.dir, step[1:]...); err != nil {
			return err
		}
	}
	err = b.measureWork("limit folder push on disk", func() error { // as ours is, at the end
		if err := run.Run(ctx, run.Command{Argv: []string{"cp", "-r", b.path("v1"), b.path("copy", "again")}}); err != nil {
			return err
		}
		return run.Run(ctx, run.Command{Argv: []string{"sync", "-f", b.path("copy")}})
	})
	return errors.Join(err, b.compare(ctx, b.path("got")))
}

// withRegistry starts an empty docker-registry behind a line that counts.
func (b *storeBench) withRegistry(ctx context.Context, measure func(repo string) error) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := listener.Addr().String()
	listener.Close()
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q}\n", b.path("registry"), addr)
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
	if err := waitForPort(ctx, addr); err != nil {
		return err
	}
	if b.line, err = listenCounted(addr); err != nil {
		return err
	}
	defer b.line.Close()
	return measure(b.line.Addr().String() + "/bench/images")
}

func waitForPort(ctx context.Context, addr string) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil || time.Since(began) > 10*time.Second {
			return err
		}
	}
}

// countedLine passes connections on to a server, and counts the bytes.
type countedLine struct {
	net.Listener
	up, down atomic.Int64
}

func listenCounted(server string) (*countedLine, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	line := &countedLine{Listener: listener}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go line.pass(c, server)
		}
	}()
	return line, nil
}

func (l *countedLine) pass(client net.Conn, server string) {
	defer client.Close()
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	go func() {
		defer s.Close()
		io.Copy(s, countedReader{client, &l.up})
	}()
	io.Copy(client, countedReader{s, &l.down})
}

type countedReader struct {
	in    io.Reader
	count *atomic.Int64
}

func (c countedReader) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.count.Add(int64(n))
	return n, err
}

// print writes the table, and the ratios.
func (b *storeBench) print() error {
	tw := tabwriter.NewWriter(b.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "step\tmedian s\tmin s\tmax s\tMB up\tMB down\tn\t")
	for _, name := range b.steps {
		t := b.times[name]
		fmt.Fprintf(tw, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t\n", name, median(t).Seconds(), slices.Min(t).Seconds(), slices.Max(t).Seconds(), float64(b.up[name])/1e6, float64(b.down[name])/1e6, len(t))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var ratios []Ratio
	over := func(name, a, o string) {
		ratios = append(ratios, Ratio{name, median(b.times[a]).Seconds() / median(b.times[o]).Seconds()})
	}
	for _, step := range []string{"push first", "push again", "push second version", "pull first", "pull again", "pull second version"} {
		over(strings.ReplaceAll(step, " ", "_")+"_oras_over_ours", "oras "+step, "ours "+step)
	}
	over("push_limit_over_ours", "limit push first", "ours push first")
	over("pull_limit_over_ours", "limit pull first", "ours pull first")
	over("folder_cp_over_ours", "limit folder push first", "ours folder push first")
	over("folder_cp_and_sync_over_ours", "limit folder push on disk", "ours folder push first")
	for _, step := range []string{"pull again", "pull second version"} {
		ratios = append(ratios, Ratio{strings.ReplaceAll(step, " ", "_") + "_bytes_ours_over_oras", float64(b.down["ours "+step]) / float64(max(b.down["oras "+step], 1))})
	}
	return printRatios(b.w, ratios)
}
