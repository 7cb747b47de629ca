package update

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"slipway/flash/boardssh"
	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Bundle is an update file on this machine that the board's engine installs. Slipway reads its
// Claims but does not verify them; the engine does.
type Bundle struct {
	Claims
	File      string `json:"file"`
	Kind      Kind   `json:"kind"`
	Format    string `json:"format,omitempty"` // of RAUC: plain, verity, crypt
	SizeBytes int64  `json:"sizeBytes"`
	SHA256    string `json:"-"`

	file    *sealed.File
	suffix  string // the file name ending of its kind
	capsule string // GUID of the Jetson firmware in the bundle; "": none
}

// Kind is the engine that a bundle is for.
type Kind string

// The kinds of bundles.
const (
	RAUC     Kind = "RAUC"
	SWUpdate Kind = "SWUpdate"
)

// engine is one kind of update engine: the files that it takes, and how it is found on a board.
type engine struct {
	kind   Kind
	suffix string // of its bundles' names
	is     func(head []byte) bool
	read   func(*Bundle) error
	find   func(ctx context.Context, c *boardssh.Conn, bus string) (Engine, error) // an error means that the board does not have it
}

// engines returns all kinds of engines, in the order in which Slipway looks for them.
func engines() []engine {
	return []engine{
		{RAUC, ".raucb", isSquashfs, readRAUC, findRAUC},
		{SWUpdate, ".swu", isCpio, readSWUpdate, findSWUpdate},
	}
}

// EngineNames returns the names of the engines, like "RAUC or SWUpdate".
func EngineNames() string {
	var names []string
	for _, e := range engines() {
		names = append(names, string(e.kind))
	}
	return strings.Join(names, " or ")
}

// headBytes is how many bytes of a file are needed to recognize its format.
const headBytes = 512

// OpenBundle opens and digests a bundle, and reads its format, compatible and version. If its bytes
// change after that, a read of them fails (see package sealed), so the board does not get them.
func OpenBundle(ctx context.Context, name string) (*Bundle, error) {
	f, err := sealed.Open(name)
	if err != nil {
		return nil, localfile.ExplainUnreadable(name, err)
	}
	b := &Bundle{File: name, file: f, SizeBytes: f.SizeBytes()}
	err = progress.Run(ctx, "digest of "+filepath.Base(name), func(step *progress.Step) (_ string, err error) {
		b.SHA256, err = f.Seal(ctx, step.Add)
		return "", err
	})
	if err == nil {
		err = b.readFormat()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// Close closes the file.
func (b *Bundle) Close() error { return b.file.Close() }

// readFormat recognizes the engine by the bundle's first bytes, and fills in b.Kind, b.suffix and
// what the engine's reader reads, such as the version. An unknown format is an error.
func (b *Bundle) readFormat() error {
	head := make([]byte, headBytes)
	n, err := b.file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return err
	}
	for _, e := range engines() {
		if e.is(head[:n]) {
			b.Kind, b.suffix = e.kind, e.suffix
			return e.read(b)
		}
	}
	return fmt.Errorf("not a bundle for %s\nnext: build --help  # --target=bundle makes one for a virtual board, slipway-bundle with RAUC, slipway-update for a Jetson", EngineNames())
}

func isSquashfs(head []byte) bool { return bytes.HasPrefix(head, []byte("hsqs")) }

// maxSignatureBytes is RAUC's own limit.
const maxSignatureBytes = 64 << 10

// readRAUC fills in format, compatible and version from the signature at a RAUC bundle's end: a CMS
// message, whose length is in the last 8 bytes. The signature of a verity bundle contains the
// manifest. A plain bundle's last two stay empty, because its manifest is in the squashfs.
// Slipway does not verify the signature. An encrypted bundle is an error.
func readRAUC(b *Bundle) error {
	var tail [8]byte
	if b.SizeBytes < int64(len(tail)) {
		return errors.New("the bundle is cut short: no signature at its end")
	}
	if _, err := b.file.ReadAt(tail[:], b.SizeBytes-8); err != nil {
		return err
	}
	length := binary.BigEndian.Uint64(tail[:])
	if length == 0 || length > maxSignatureBytes || int64(length) > b.SizeBytes-8 {
		return fmt.Errorf("the bundle is cut short or damaged: its last 8 bytes tell of a signature of %d bytes; copy or make it again", length)
	}
	message := make([]byte, length)
	if _, err := b.file.ReadAt(message, b.SizeBytes-8-int64(length)); err != nil {
		return err
	}
	if bytes.Contains(message, envelopedData) {
		return errors.New("the bundle is encrypted; such bundles are not supported, as nothing of them can be told before they are installed: install it on the board with rauc itself")
	}
	b.Format = cmp.Or(manifestField(message, "bundle", "format"), "plain")
	b.Compatible, b.Version = manifestField(message, "update", "compatible"), manifestField(message, "update", "version")
	return nil
}

// envelopedData is the type of an encrypted CMS message (RFC 5652), as its bytes have it.
var envelopedData = []byte("\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x03")

// manifestField returns a value of the manifest text inside message, a raw CMS signature, or "".
func manifestField(message []byte, section, key string) string {
	_, text, _ := strings.Cut(string(message), "["+section+"]\n")
	text, _, _ = strings.Cut(text, "\n[")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			return plaintext.OneLine(strings.TrimSpace(value))
		}
	}
	return ""
}
