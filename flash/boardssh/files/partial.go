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

// A large upload that broke off leaves what it brought under a hidden name which the
// next one finds again. Several streams leave holes there, so its size says nothing:
// what counts is which of its blocks have the digests of the source's.
const (
	resumeBytes = 8 << 20 // smaller files are sent again
	blockBytes  = 4 << 20
	mostBlocks  = 8192 // of larger files the blocks are larger
)

// partFile is a file on the board that is not whole yet.
type partFile struct {
	name    string
	found   bool        // the next upload of the same file finds it
	earlier bool        // an earlier upload made it, and its process there may still have it open
	missing []piece     // in order
	file    pieceWriter // open, if this upload created it
}

func (p partFile) missingBytes() (n int64) {
	for _, m := range p.missing {
		n += m.length
	}
	return n
}

// beginPart creates the file that the pieces of src go to, or finds the one of an earlier
// upload.
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
	if p.found && !p.earlier {
		p.file, err = b.createFile(ctx, p.name)
		p.found = err == nil // else it was created since we looked
	}
	if !p.found {
		p.name = tempName(remote)
		p.file, err = b.createFile(ctx, p.name)
	}
	if err != nil {
		return partFile{}, fmt.Errorf("create a file in %s: %w", dir, err)
	}
	return p, nil
}

// findPart looks for the file of an earlier upload. The part has no name if there is nothing
// to trust: a name that can be guessed is used only where nobody else can write.
func findPart(ctx context.Context, c *boardssh.Conn, src source, name string, look func() (folderListing, error), tell uploadProgress) (partFile, error) {
	p := partFile{missing: wholeFile(src.size)}
	if name == "" {
		return p, nil
	}
	seen, err := look()
	if err != nil && !errors.Is(err, boardssh.ErrSilent) { // the folder was not there
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
	p.name, p.found = name, true
	return p, err
}

// hiddenName is a name beside remote that keeps within what file systems take.
func hiddenName(remote, id string) string {
	return hiddenPrefix(remote) + "." + id + ".part"
}

func hiddenPrefix(remote string) string {
	dir, base := path.Split(pathArgument(remote))
	return dir + "." + base[:min(len(base), 200)]
}

// partName is the name of a source's part; "" if the source is sent from the start.
func (s source) partName(remote string) (string, error) {
	if s.size < resumeBytes {
		return "", nil
	}
	id, err := s.sourceID(remote)
	return hiddenName(remote, id), err
}

// sourceID tells versions of a source apart, for the name of its part. It uses the digest, or
// samples and the time of the last change, because a digest takes a while. Only digests of the
// blocks decide what the upload leaves out.
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

// lookScript is fixed text; its arguments are the folder and the name in it. Names do
// not appear in what it prints before all else was read.
const lookScript = `cd "$1" && id -u && ls -ldn . && { [ -e "$2" ] || [ -L "$2" ] || exit 0; } && ls -ldn "$2"`

// inspectPart checks who could have written under this name.
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

// folderListing is a folder, and a file in it, as ls lists them.
type folderListing struct {
	uid          int64 // the one that we are on the board
	folder, file listedFile
	there        bool
}

type listedFile struct {
	kind             byte
	rights           string
	links, uid, size int64
}

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

func parseListed(line string) (listedFile, error) {
	m := listedPattern().FindStringSubmatch(line)
	if m == nil {
		// A device has two numbers in the place of its size.
		return listedFile{}, errListing
	}
	l := listedFile{kind: m[1][0], rights: m[2]}
	for i, to := range []*int64{&l.links, &l.uid, &l.size} {
		*to, _ = strconv.ParseInt(m[3+i], 10, 64) // its digits fit
	}
	return l, nil
}

// inputDigest is a part of scripts.
const inputDigest = `{ openssl dgst -sha256 -r 2>/dev/null || sha256sum; }`

// blocksScript is fixed text; its arguments are the file, the size of a block, and
// their number.
const blocksScript = `i=0
while [ "$i" -lt "$3" ]; do
	dd if="$1" bs="$2" skip="$i" count=1 2>/dev/null | ` + inputDigest + ` || exit
	i=$((i + 1))
done`

// compareBlocks says which pieces of src are missing in the file on the board, which has size
// bytes.
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
			sums = nil // who sends the file will say it better
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

// parseDigests reads a digest a line, until something else comes.
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

// missingPieces are the pieces of a file whose blocks have other digests there than here.
func missingPieces(there, here []string, block, size int64) (missing []piece) {
	for i, at := 0, int64(0); at < size; i, at = i+1, at+block {
		if i < len(there) && i < len(here) && there[i] == here[i] {
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
