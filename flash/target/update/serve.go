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

	"slipway/flash/target"
	"slipway/flash/target/files"
)

// Source is a bundle as an engine on the board gets at it.
type Source struct {
	Delivery Delivery
	Why      string    // why no better way would do
	Where    string    // an address or a path, for the board
	Data     io.Reader // where it is piped

	board     *target.Conn
	signed    validity // the certificate of who signed it
	sizeBytes int64
	served    atomic.Int64
	close     func()
}

// ServedBytes is how many bytes of the bundle went to the board so far.
func (s *Source) ServedBytes() int64 { return s.served.Load() }

// Close stops serving, and removes what was put on the board. Where the connection was
// lost, it is for calling again on the next.
func (s *Source) Close() { s.close() }

// OfferBundle makes a bundle available to the board's engine, in the best way that both
// know. A board that opens no port for us gets a file.
func OfferBundle(ctx context.Context, c *target.Conn, e Engine, b *Bundle) (*Source, error) {
	way, why := e.ChooseDelivery(ctx, b)
	s := &Source{Delivery: way, Why: why, board: c, signed: b.signed, sizeBytes: b.SizeBytes}
	switch way {
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
		if !errors.Is(err, target.ErrForwarding) {
			return nil, err
		}
		s.Delivery, s.Why = Staged, err.Error()
	}
	return s, s.stageBundle(ctx, c, b)
}

// What a board may ask of the server at once.
const (
	maxConnections        = 16
	maxRequestHeaderBytes = 8 << 10
)

// headerLimit is how long a program on the board may take to say what it wants. One
// that never does would else keep a place from the engine.
var headerLimit = time.Minute

// startServer answers on the board's own port. Others on the board can reach it too, so
// the path cannot be guessed, and it is the only one.
func (s *Source) startServer(listener net.Listener, b *Bundle) {
	at := "/" + rand.Text() + "/bundle" + b.fileSuffix()
	server := &http.Server{
		Handler:           s.newHandler(at, b),
		MaxHeaderBytes:    maxRequestHeaderBytes,
		ReadHeaderTimeout: headerLimit,
		IdleTimeout:       5 * time.Minute,
		ErrorLog:          nil, // Mage throws that away; a board's bad requests are its own affair
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

func (s *Source) newHandler(at string, b *Bundle) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != at:
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

// Folders that a bundle may wait in, best first: those on a disk before those in
// memory, and none of the slot that runs, which may be full to the brim.
var stageDirs = []string{"/data", "/var/tmp", "/tmp", "/run"}

// spareBytes is what is left free beside a bundle.
const spareBytes = 16 << 20

// stageBundle puts the bundle on the board, under a name that is the same each time and
// no other bundle's: what was left there by a run that was killed is replaced by
// the next.
func (s *Source) stageBundle(ctx context.Context, c *target.Conn, b *Bundle) error {
	dir, err := findStageDir(ctx, c, b.SizeBytes+spareBytes)
	if err != nil {
		return err
	}
	s.Where = path.Join(dir, ".slipway-update-"+b.digest+b.fileSuffix())
	s.close = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		_, _ = c.Run(ctx, "rm", "-f", "--", s.Where) // a board that is gone keeps it; the next update replaces it
	}
	if _, err := files.Put(ctx, c, b.File, s.Where, 0o600); err != nil {
		return err
	}
	s.served.Store(b.SizeBytes)
	return nil
}

// freeSpaceScript tells how much room there is where we may write; $@ are folders.
const freeSpaceScript = `for d; do [ -d "$d" ] && [ -w "$d" ] && echo "$d $(df -Pk "$d" | tail -n 1)"; done; true`

// findStageDir is the first of the stages with so much room.
func findStageDir(ctx context.Context, c *target.Conn, needBytes int64) (string, error) {
	r, err := c.Run(ctx, append([]string{"sh", "-c", freeSpaceScript, "sh"}, stageDirs...)...)
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

// parseFreeSpace reads a folder and df's line for it, of which the fourth word is what
// is free, in KiB.
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
