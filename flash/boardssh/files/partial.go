package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// A large upload that broke off leaves its bytes in a file with a hidden name (a part), which the
// next upload finds. Several streams leave holes in that file, so its size says nothing: Slipway
// compares the digests of its blocks with the source's.
const (
	resumeBytes = 8 << 20 // smaller files are sent from the start
	blockBytes  = 4 << 20
	mostBlocks  = 8192 // larger files have larger blocks
)

// partFile is the unfinished file of an upload on the board.
type partFile struct {
	name      string
	resumable bool        // it has a name that the next upload of the same file finds
	earlier   bool        // an earlier upload made it; that upload's process on the board may still have it open
	missing   []piece     // in order
	file      pieceWriter // open, if this upload created it
}

// missingBytes returns how many bytes of the source the part file lacks.
func (p partFile) missingBytes() (n int64) {
	for _, m := range p.missing {
		n += m.length
	}
	return n
}

// beginPart makes remote's folder, looks for an earlier upload's part file called name, which look
// may have listed, checks the free space, and creates the file if none was found. If name is "" or
// unsafe, the new file's name is random.
func beginPart(ctx context.Context, c *boardssh.Conn, b boardFiles, src source, remote, name string, look func() (folderListing, error), tell uploadProgress) (partFile, error) {
	dir := path.Dir(remote)
	if err := b.makeDir(ctx, dir); err != nil {
		return partFile{}, fmt.Errorf("make folder %s: %w", dir, err)
	}
	p, err := findPart(ctx, c, src, name, look, tell)
	if err != nil {
		return partFile{}, err
	}
	if err := checkFreeSpace(ctx, c, b, dir, p.missingBytes()); err != nil {
		return partFile{}, err
	}
	if p.resumable && !p.earlier {
		p.file, err = b.createFile(ctx, p.name)
		p.resumable = err == nil // otherwise somebody created it meanwhile
	}
	if !p.resumable {
		p.name = tempName(remote)
		p.file, err = b.createFile(ctx, p.name)
	}
	if err != nil {
		return partFile{}, fmt.Errorf("create a file in %s: %w", dir, err)
	}
	return p, nil
}

// findPart compares an earlier upload's part file, if any, with src. The result's name is "" if the
// file or its folder cannot be listed or may be another user's, or if the file exceeds src.
func findPart(ctx context.Context, c *boardssh.Conn, src source, name string, look func() (folderListing, error), tell uploadProgress) (partFile, error) {
	p := partFile{missing: wholeFile(src.size)}
	if name == "" {
		return p, nil
	}
	seen, err := look()
	if err != nil && !errors.Is(err, boardssh.ErrSilent) { // the early look may have come before the folder existed
		seen, err = inspectPart(ctx, c, name)
	}
	if errors.Is(err, boardssh.ErrSilent) {
		return p, err
	}
	if err != nil || !seen.folderIsOurs() {
		return p, ctx.Err()
	}
	switch {
	case !seen.there:
	case !seen.fileIsOurs() || seen.file.size > src.size:
		return p, nil
	default:
		p.earlier = true
		tell.Detail("comparing what an earlier run brought")
		p.missing, err = compareBlocks(ctx, c, src, name, seen.file.size)
		tell.Detail("")
		tell.Add(src.size - p.missingBytes())
	}
	p.name, p.resumable = name, true
	return p, err
}

// hiddenName returns .BASE.ID.part beside remote. It shortens BASE to fit into a file name.
func hiddenName(remote, id string) string {
	return hiddenPrefix(remote) + "." + id + ".part"
}

var partPattern = plaintext.Regexp(`(?s)^(.*/)?\.([^/]+)\.([A-Z0-9]{10}|[0-9a-f]{20})\.part$`)

// PartOf returns the path of the uploaded file whose part file is called name, or "" if name is not
// that of a part file.
func PartOf(name string) string {
	m := partPattern().FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}

func hiddenPrefix(remote string) string {
	dir, base := path.Split(pathArgument(remote))
	return dir + "." + base[:min(len(base), 200)]
}

// partName returns the name of the source's part file on the board, or "" for a small source.
func (s source) partName(remote string) (string, error) {
	if s.size < resumeBytes {
		return "", nil
	}
	id, err := s.sourceID(remote)
	return hiddenName(remote, id), err
}

// sourceID returns an ID for this version of a source, for the name of its part file. It uses the
// digest if known. Otherwise it uses samples and the time of the last change, because a digest
// takes a while. The upload skips only blocks with equal digests, whatever the ID.
func (s source) sourceID(remote string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00%s\x00", remote, s.size, s.sha256)
	if s.sha256 == "" {
		fmt.Fprintf(h, "%d\x00", s.modified.UnixNano())
		const samples, sampleBytes = 16, 64 << 10
		for i := range int64(samples) {
			at := (s.size - sampleBytes) / (samples - 1) * i
			if _, err := io.Copy(h, io.NewSectionReader(s.data, at, sampleBytes)); err != nil {
				return "", err
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:idDigits], nil
}

const idDigits = 20

// lookScript prints the user's number, and ls lines of the folder $1 and of the file $2 in it. File
// names come last in its output, where they cannot imitate other fields.
const lookScript = `cd "$1" && id -u && ls -ldn . && { [ -e "$2" ] || [ -L "$2" ] || exit 0; } && ls -ldn "$2"`

// inspectPart lists a part file, if any, and its folder on the board, with owners and permissions.
func inspectPart(ctx context.Context, c *boardssh.Conn, name string) (folderListing, error) {
	r, err := c.Ask(ctx, "sh", "-c", lookScript, "sh", pathArgument(path.Dir(name)), "./"+path.Base(name))
	if err != nil {
		return folderListing{}, err
	}
	if r.Status != 0 {
		return folderListing{}, fmt.Errorf("status %d", r.Status)
	}
	return parseSeen(r.Stdout)
}

// folderListing holds the owner, kind and permissions of a folder, and of a file in it.
type folderListing struct {
	uid          int64 // of the user that Slipway's programs run as
	folder, file listedFile
	there        bool
}

type listedFile struct {
	kind             byte
	rights           string
	links, uid, size int64
}

// folderIsOurs reports whether only this user and root can replace files in the folder.
func (s folderListing) folderIsOurs() bool {
	others := s.folder.rights[4] == 'w' || s.folder.rights[7] == 'w'
	sticky := strings.ContainsRune("tT", rune(s.folder.rights[8]))
	return s.folder.kind == 'd' && (s.folder.uid == s.uid || s.folder.uid == 0) && (!others || sticky)
}

func (s folderListing) fileIsOurs() bool {
	return s.file.kind == '-' && s.file.uid == s.uid && s.file.links == 1
}

var listedPattern = plaintext.Regexp(`^([-dlbcpsD])([-rwxsStT]{9})[.+@]? +(\d{1,18}) +(\d{1,18}) +\d{1,18} +(\d{1,18}) `)

var errListing = errors.New("the board lists files in a way that is not known")

// parseSeen parses lookScript's output: a user number, then ls lines of a folder and maybe a file.
func parseSeen(out []byte) (s folderListing, err error) {
	lines := strings.SplitN(string(out), "\n", 4)
	if len(lines) < 3 {
		return folderListing{}, errListing
	}
	if s.uid, err = strconv.ParseInt(strings.TrimSpace(lines[0]), 10, 64); err != nil {
		return folderListing{}, errListing
	}
	if s.folder, err = parseListed(lines[1]); err != nil {
		return folderListing{}, err
	}
	if s.there = lines[2] != ""; s.there {
		s.file, err = parseListed(lines[2])
	}
	return s, err
}

// parseListed parses a line of ls -ldn. An unknown form, such as a device's, is an error.
func parseListed(line string) (listedFile, error) {
	m := listedPattern().FindStringSubmatch(line)
	if m == nil {
		// Devices do not match either: they have two numbers instead of a size.
		return listedFile{}, errListing
	}
	l := listedFile{kind: m[1][0], rights: m[2]}
	for i, to := range []*int64{&l.links, &l.uid, &l.size} {
		*to, _ = strconv.ParseInt(m[3+i], 10, 64) // its digits fit
	}
	return l, nil
}

// inputDigest is a piece of shell scripts that prints the digest of standard input.
const inputDigest = `{ openssl dgst -sha256 -r 2>/dev/null || sha256sum; }`

// blocksScript prints the digests of the blocks of the file $1: $3 blocks with the size $2.
const blocksScript = `i=0
while [ "$i" -lt "$3" ]; do
	dd if="$1" bs="$2" skip="$i" count=1 2>/dev/null | ` + inputDigest + ` || exit
	i=$((i + 1))
done`

// compareBlocks compares the digests of the blocks of src with those of the board's file, which has
// size bytes, and returns the pieces of src that the board's file lacks.
func compareBlocks(ctx context.Context, c *boardssh.Conn, src source, name string, size int64) ([]piece, error) {
	block := int64(blockBytes)
	for (src.size-1)/block >= mostBlocks {
		block *= 2
	}
	n := int((size + block - 1) / block)
	here := make(chan []string, 1)
	go func() {
		sums, err := src.blockDigests(ctx, block, n)
		if err != nil {
			sums = nil // sending the file will report the error
		}
		here <- sums
	}()
	r, err := c.Run(ctx, "sh", "-c", blocksScript, "sh", name, strconv.FormatInt(block, 10), strconv.Itoa(n))
	sums := <-here
	if err != nil {
		return wholeFile(src.size), err
	}
	return missingPieces(parseDigests(r.Stdout), sums, block, src.size), nil
}

// parseDigests reads a digest from each line, up to one without a digest, and at most mostBlocks.
func parseDigests(out []byte) (sums []string) {
	for line := range bytes.Lines(out) {
		m := digestPattern().FindSubmatch(line)
		if m == nil || len(sums) == mostBlocks {
			break
		}
		sums = append(sums, string(m[1]))
	}
	return sums
}

// missingPieces returns the pieces of a file whose blocks have no digest in board, or another than
// in local. Adjacent blocks are one piece.
func missingPieces(board, local []string, block, size int64) (missing []piece) {
	for i, at := 0, int64(0); at < size; i, at = i+1, at+block {
		if i < len(board) && i < len(local) && board[i] == local[i] {
			continue
		}
		length := min(block, size-at)
		if last := len(missing) - 1; last >= 0 && missing[last].offset+missing[last].length == at {
			missing[last].length += length
			continue
		}
		missing = append(missing, piece{at, length})
	}
	return missing
}

// blockDigests returns the digests of the first n blocks of the source. A block has block bytes.
func (s source) blockDigests(ctx context.Context, block int64, n int) ([]string, error) {
	sums := make([]string, n)
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(runtime.GOMAXPROCS(0))
	for i := range sums {
		workers.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			h := sha256.New()
			_, err := io.Copy(h, io.NewSectionReader(s.data, int64(i)*block, min(block, s.size-int64(i)*block)))
			sums[i] = hex.EncodeToString(h.Sum(nil))
			return err
		})
	}
	return sums, workers.Wait()
}
