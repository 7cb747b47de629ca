package cache

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"slipway/layers/plaintext"

	"golang.org/x/sys/unix"
)

const descriptorPath = "/cache.json"

// servedFolder is a folder whose complete files are served. Files outside of it are not.
type servedFolder struct {
	root     *os.Root
	complete func(root *os.Root, name string) bool
}

// bitbake writes sstate under a name with another ending first.
var sstateName = plaintext.Regexp(`\.(tgz|tar\.zst|tar\.gz|tar\.xz)(\.siginfo|\.sig)?$`)

func completeSstate(_ *os.Root, name string) bool { return sstateName().MatchString(name) }

// completeDownload reports whether bitbake has fetched and checked a file: NAME.done then exists.
func completeDownload(root *os.Root, name string) bool {
	_, err := root.Stat(name + ".done")
	return err == nil
}

// openFile opens a complete regular file of the folder. Other names give fs.ErrNotExist.
func (s *servedFolder) openFile(name string) (*os.File, fs.FileInfo, error) {
	if isHidden(name) || !s.complete(s.root, name) {
		return nil, nil, fs.ErrNotExist
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not hold a request
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// isHidden reports whether a name is empty, not a local path, or has a part that begins with a dot.
func isHidden(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") {
			return true
		}
	}
	return name == "" || !filepath.IsLocal(name)
}

// ServeHTTP sends a complete file, or a range of it. It lists no folders, because bitbake knows the
// names of the files that it wants; the folder itself gets an empty answer.
func (s *servedFolder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" { // a probe
		w.WriteHeader(http.StatusOK)
		return
	}
	f, info, err := s.openFile(name)
	if err != nil {
		status := http.StatusNotFound
		if errors.Is(err, fs.ErrPermission) {
			status = http.StatusForbidden
		}
		http.Error(w, http.StatusText(status), status)
		return
	}
	defer f.Close()
	// A slow client is served, as long as it reads at minBytesPerSec.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute + time.Duration(info.Size()/minBytesPerSec)*time.Second))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, path.Base(name), info.ModTime(), f)
}

const minBytesPerSec = 64 << 10 // bytes a second

// newFilesHandler returns the read-only HTTP handler of both served folders and of /cache.json.
func newFilesHandler(sstate, downloads *servedFolder, self descriptor) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /sstate/", http.StripPrefix("/sstate", sstate)) // GET matches HEAD too
	mux.Handle("GET /downloads/", http.StripPrefix("/downloads", downloads))
	mux.HandleFunc("GET "+descriptorPath, self.sendDescriptor)
	return mux
}

// sendDescriptor sends the descriptor as JSON, to other machines without the folder and the key.
func (d descriptor) sendDescriptor(w http.ResponseWriter, r *http.Request) {
	if !sameMachine(r) {
		d.Folder, d.Key = "", ""
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(d) // a client that is gone needs no answer
}

// sameMachine reports whether the client has the same address as the server.
func sameMachine(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	to, _, errTo := net.SplitHostPort(local.String())
	from, _, errFrom := net.SplitHostPort(r.RemoteAddr)
	return errTo == nil && errFrom == nil && to == from
}
