package update_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	"slipway/flash/boardssh/update"
)

// streamingEngine is an engine that streams, without the other methods.
type streamingEngine struct{ update.Engine }

func (streamingEngine) ChooseDelivery(context.Context, *update.Bundle) (update.Delivery, string) {
	return update.Streamed, ""
}

// offerBundle serves a bundle to a board whose engine streams.
func offerBundle(t *testing.T, file string) (*update.Source, *update.Bundle) {
	t.Helper()
	b, err := update.OpenBundle(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	from, err := update.OfferBundle(t.Context(), boardtest.Connect(t), streamingEngine{}, b)
	if err != nil {
		t.Fatal(err)
	}
	return from, b
}

// The requests come from the board, over a real SSH connection.
func TestServe(t *testing.T) {
	file := makeFile(t, 300<<10)
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	from, _ := offerBundle(t, file)
	at, err := url.Parse(from.Where)
	if err != nil || from.Delivery != update.Streamed || at.Hostname() != "127.0.0.1" || len(at.Path) < 27 {
		t.Fatalf("OfferBundle() = %s %s; want a random address on 127.0.0.1", from.Delivery, from.Where)
	}
	other := *at
	other.Path = "/bundle.raucb"
	for _, tt := range []struct {
		name, method, url, span string
		status, from, to        int
	}{
		{"all", "GET", from.Where, "", 200, 0, len(want)},
		{"a range", "GET", from.Where, "bytes=4096-8191", 206, 4096, 8192},
		{"its end", "GET", from.Where, "bytes=-100", 206, len(want) - 100, len(want)},
		{"past its end", "GET", from.Where, fmt.Sprintf("bytes=%d-", len(want)), 416, -1, -1},
		{"its size", "HEAD", from.Where, "", 200, 0, 0},
		{"another path", "GET", other.String(), "", 404, -1, -1},
		{"a folder", "GET", strings.TrimSuffix(from.Where, "bundle.raucb"), "", 404, -1, -1},
		{"an upload", "PUT", from.Where, "", 405, -1, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, tt.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.span != "" {
				r.Header.Set("Range", tt.span)
			}
			answer, err := (&http.Transport{}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			got, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != tt.status {
				t.Fatalf("status %d, %v; want %d", answer.StatusCode, err, tt.status)
			}
			if tt.from >= 0 && !bytes.Equal(got, want[tt.from:tt.to]) {
				t.Errorf("%d bytes came, and not those from %d to %d", len(got), tt.from, tt.to)
			}
			if tt.method == "HEAD" && answer.ContentLength != int64(len(want)) {
				t.Errorf("it says that it has %d bytes; want %d", answer.ContentLength, len(want))
			}
		})
	}
	if got, least := from.ServedBytes(), int64(len(want)+4096+100); got < least {
		t.Errorf("ServedBytes() = %d; want %d at least", got, least)
	}
	from.Close()
	if answer, err := (&http.Transport{}).RoundTrip(&http.Request{Method: "GET", URL: at}); err == nil {
		answer.Body.Close()
		t.Error("it still serves after Close")
	}
}

// Programs on the board that connect and send no request cannot block the engine. With
// MaxConnections of them, the server still answers it in the end.
func TestServeSilentClients(t *testing.T) {
	t.Cleanup(update.SetHeaderLimit(time.Second))
	from, b := offerBundle(t, makeFile(t, 100<<10))
	defer from.Close()
	at, err := url.Parse(from.Where)
	if err != nil {
		t.Fatal(err)
	}
	var silent []net.Conn
	for range update.MaxConnections {
		conn, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost:", at.Path)
		silent = append(silent, conn)
	}
	for { // on a busy machine it may be too slow for that limit too
		answer, err := http.Get(from.Where)
		if err != nil {
			continue
		}
		n, err := io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err != nil || n != b.SizeBytes {
			t.Errorf("%d bytes came, %v; want %d", n, err, b.SizeBytes)
		}
		break
	}
	for _, conn := range silent {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a silent client is told %v; want the end of its connection", err)
		}
	}
}

// The board gets the bundle that was read, or none, whoever writes to its folder.
func TestBundleChanges(t *testing.T) {
	for _, where := range []string{"streamed", "staged"} {
		file := makeFile(t, 100<<10)
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := update.OpenBundle(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		get := func() ([]byte, error) {
			var options []string
			if where == "staged" {
				options = []string{"AllowTcpForwarding no"}
			}
			from, err := update.OfferBundle(t.Context(), boardtest.Connect(t, options...), streamingEngine{}, b)
			if err != nil {
				return nil, err
			}
			defer from.Close()
			if where == "staged" {
				return os.ReadFile(from.Where)
			}
			r, err := http.Get(from.Where)
			if err != nil {
				return nil, err
			}
			defer r.Body.Close()
			return io.ReadAll(r.Body)
		}
		other := bytes.Clone(want)
		other[50<<10] ^= 1
		if err := errors.Join(os.Rename(file, file+".old"), os.WriteFile(file, other, 0o600)); err != nil {
			t.Fatal(err)
		}
		if got, err := get(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s, renamed: %d bytes, %v; want those of the bundle that was opened", where, len(got), err)
		}
		if err := os.WriteFile(file+".old", other, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := get(); err == nil {
			t.Errorf("%s, edited: the board gets %d bytes; want an error", where, len(got))
		}
	}
}

// If the board's sshd forwards no port, Slipway puts the bundle on the board and removes it.
func TestStage(t *testing.T) {
	file := makeFile(t, 100<<10)
	b, err := update.OpenBundle(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	from, err := update.OfferBundle(t.Context(), boardtest.Connect(t, "AllowTcpForwarding no"), streamingEngine{}, b)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if from.Delivery != update.Staged || !strings.Contains(from.Why, "AllowTcpForwarding") {
		t.Errorf("OfferBundle() = %s, because %q; want %s, and what to set", from.Delivery, from.Why, update.Staged)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(from.Where); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes, %v; want the %d of the bundle", from.Where, len(got), err, len(want))
	}
	if info, err := os.Stat(from.Where); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat() = %v, %v; want it to be readable by its owner alone", info, err)
	}
	from.Close()
	if left, err := filepath.Glob(from.Where + "*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestStageWithoutSpace(t *testing.T) {
	b, err := update.OpenBundle(t.Context(), makeFile(t, 100<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c := boardtest.Connect(t, "AllowTcpForwarding no", sshtest.BeforeProgram(t, "df", "exit 1"))
	from, err := update.OfferBundle(t.Context(), c, streamingEngine{}, b)
	sshtest.CheckError(t, err, "no room on ")
	if from != nil {
		t.Errorf("OfferBundle() = %+v with an error; want nil, because its Close would panic", from)
	}
}
