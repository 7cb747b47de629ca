package update

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
)

// Source is how an engine on the board reads a bundle: from a URL, a file on the board, or Data.
type Source struct {
	Delivery Delivery
	Why      string    // why not a better delivery
	Where    string    // a URL or a path on the board
	Data     io.Reader // of a piped bundle

	sizeBytes int64
	served    atomic.Int64
	close     func()
}

// ServedBytes returns how many bytes of the bundle were sent to the board so far.
func (s *Source) ServedBytes() int64 { return s.served.Load() }

// Close stops the HTTP server, and removes a staged bundle from the board.
func (s *Source) Close() { s.close() }

// OfferBundle makes a bundle available to the board's engine, as ChooseDelivery says. It stages the
// bundle instead of streaming it if the board's sshd does not forward a port.
func OfferBundle(ctx context.Context, c *boardssh.Conn, e Engine, b *Bundle) (*Source, error) {
	delivery, why := e.ChooseDelivery(ctx, b)
	s := &Source{Delivery: delivery, Why: why, sizeBytes: b.SizeBytes}
	switch delivery {
	case Piped:
		s.Data = files.Counted{Reader: io.NewSectionReader(b.file, 0, b.SizeBytes), Bytes: &s.served}
		s.close = func() {}
		return s, nil
	case Streamed:
		listener, err := c.Listen(ctx)
		if err == nil {
			s.startServer(listener, b)
			return s, nil
		}
		if !errors.Is(err, boardssh.ErrForwarding) {
			return nil, err
		}
		s.Delivery, s.Why = Staged, err.Error()
	}
	if err := s.stageBundle(ctx, c, b); err != nil {
		return nil, err
	}
	return s, nil
}

// Limits of the HTTP server, for all programs of a board together.
const (
	maxConnections        = 16
	maxRequestHeaderBytes = 8 << 10
)

// headerLimit is how long a program on the board may need to send its request. Otherwise
// silent programs could use up all connections.
var headerLimit = time.Minute

// startServer starts to serve the bundle by HTTP on listener, a port of the board, until Close.
// Other programs on the board can reach the port, so the URL in Where has a random path.
func (s *Source) startServer(listener net.Listener, b *Bundle) {
	at := "/" + rand.Text() + "/bundle" + b.suffix
	server := &http.Server{
		Handler:           s.newHandler(at, b),
		MaxHeaderBytes:    maxRequestHeaderBytes,
		ReadHeaderTimeout: headerLimit,
		IdleTimeout:       5 * time.Minute,
		ErrorLog:          nil, // Mage discards the standard logger
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(netutil.LimitListener(listener, maxConnections))
	}()
	s.Where = "http://" + listener.Addr().String() + at
	s.close = func() {
		server.Close()
		<-done
	}
}

// newHandler returns a handler for GET and HEAD of the bundle at urlPath. s.served counts bytes.
func (s *Source) newHandler(urlPath string, b *Bundle) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != urlPath:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
			content := struct {
				io.Reader
				io.Seeker
			}{}
			section := io.NewSectionReader(b.file, 0, b.SizeBytes)
			content.Reader, content.Seeker = files.Counted{Reader: section, Bytes: &s.served}, section
			http.ServeContent(w, r, "", time.Time{}, content)
		}
	})
}

// stageDirs are the folders on the board for a staged bundle, the best first. Folders on a disk
// come before those in memory. None is in the running slot, which may have no free space.
var stageDirs = []string{"/data", "/var/tmp", "/tmp", "/run"}

// spareBytes is how much space stays free beside a bundle.
const spareBytes = 16 << 20

// stageBundle uploads the bundle to the board, where Close removes it. The file's name depends only
// on the bundle, so that a run replaces the file that a killed run left.
func (s *Source) stageBundle(ctx context.Context, c *boardssh.Conn, b *Bundle) error {
	dir, err := findStageDir(ctx, c, b.SizeBytes+spareBytes)
	if err != nil {
		return err
	}
	s.Where = path.Join(dir, ".slipway-update-"+b.SHA256[:16]+b.suffix)
	s.close = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		_, _ = c.Run(ctx, "rm", "-f", "--", s.Where) // if the connection is lost, the file stays until the next update
	}
	_, err = files.PutFile(ctx, c, b.file, s.Where, 0o600)
	s.served.Store(b.SizeBytes)
	return err
}

// freeSpaceScript prints the free space of those folders in $@ that the user may write to.
const freeSpaceScript = `for d; do [ -d "$d" ] && [ -w "$d" ] && echo "$d $(df -Pk "$d" | tail -n 1)"; done; true`

// findStageDir returns the first of stageDirs with needBytes of free space, or an error.
func findStageDir(ctx context.Context, c *boardssh.Conn, needBytes int64) (string, error) {
	r, err := c.Ask(ctx, append([]string{"sh", "-c", freeSpaceScript, "sh"}, stageDirs...)...)
	if err != nil {
		return "", err
	}
	free := parseFreeSpace(string(r.Stdout))
	var most int64
	for _, dir := range stageDirs {
		if free[dir] >= needBytes {
			return dir, nil
		}
		most = max(most, free[dir])
	}
	return "", fmt.Errorf("no room on %s for the bundle: %d MiB are needed in one of %s, and there are %d; make room there",
		c.Address().Host, needBytes>>20, strings.Join(stageDirs, ", "), most>>20)
}

// parseFreeSpace returns the free bytes of folders. Each line has a folder and df's line for it,
// whose fourth word is the free space in KiB. It skips invalid lines and full folders.
func parseFreeSpace(text string) map[string]int64 {
	free := map[string]int64{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 6 {
			continue
		}
		if kib, err := strconv.ParseInt(words[4], 10, 64); err == nil && kib > 0 && kib < 1<<50 {
			free[words[0]] = kib << 10
		}
	}
	return free
}
