// Package trust decides who signed what, by a list of signers and a list of digests. It verifies
// signatures of OpenSSH (ssh-keygen -Y sign), and of GPG through gpgv. It fetches nothing.
package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// SignersVariable names the environment variable with the list of signers. --signers overrides it.
const SignersVariable = "SLIPWAY_SIGNERS"

const (
	maxListBytes      = 64 << 20 // of a keyring
	maxSignatureBytes = 64 << 10
	shownBytes        = 1 << 20 // what takes longer to read shows its progress
)

// List is a list of trusted signers and its origin.
type List struct {
	Signers
	From string // who names it, as --signers
	File string // the file that was read
}

// Lists are lists of signers. A file must have a valid signature for each of them.
type Lists []List

// Parse parses a list of signers. from is the option or file that names it, for errors.
func Parse(from, file string, data []byte) (List, error) {
	signers, err := ParseSigners(file, data)
	return List{signers, from, file}, err
}

// read reads and parses the list of signers in file. from is the option that names it, for errors.
func read(from, file string) (List, error) {
	data, err := localfile.Read(file, maxListBytes)
	if err != nil {
		return List{}, fmt.Errorf("%s: %w", from, localfile.ExplainUnreadable(file, err))
	}
	return Parse(from, file, data)
}

// Named reads the list of signers that option, or else SLIPWAY_SIGNERS, names; none if both are "".
func Named(option string) (Lists, error) {
	from, file := "--signers", option
	if file == "" {
		from, file = SignersVariable, os.Getenv(SignersVariable)
	}
	if file == "" {
		return nil, nil
	}
	list, err := read(from, file)
	return Lists{list}, err
}

// Own reads allowed_signers in the user's configuration. A missing one is an error. Call it if
// Named finds no list.
func Own() (Lists, error) {
	folder, err := userConfigDir()
	if err != nil {
		return nil, fmt.Errorf("find who may sign: neither --signers nor %s names a list, and your own is not found: %w", SignersVariable, err)
	}
	own := filepath.Join(folder, "allowed_signers")
	if !localfile.Exists(own) {
		return nil, fmt.Errorf("find who may sign: neither --signers nor %s is given, and there is no %s\nnext: ls -l %s  # put a list from somebody whom you trust there, or name it with --signers", SignersVariable, own, plaintext.Quote(own))
	}
	list, err := read("your own list", own)
	return Lists{list}, err
}

// userConfigDir returns Slipway's folder in the user's configuration.
func userConfigDir() (string, error) {
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "slipway"), err
}

// Place is the location of a file and the signatures beside it.
type Place interface {
	Folder() string                                              // of this machine
	ReadBeside(ctx context.Context, name string) ([]byte, error) // fs.ErrNotExist: it is not there
}

// Folder is a Place on this machine.
type Folder string

func (f Folder) Folder() string { return string(f) }

func (f Folder) ReadBeside(_ context.Context, name string) ([]byte, error) {
	return ReadRegular(filepath.Join(string(f), name), maxSignatureBytes)
}

// Content is the content of a file to verify.
type Content interface {
	SizeBytes() int64
	Reader(ctx context.Context, count func(int64)) io.Reader
}

// Bytes are the content of a small file.
type Bytes []byte

func (b Bytes) SizeBytes() int64                              { return int64(len(b)) }
func (b Bytes) Reader(context.Context, func(int64)) io.Reader { return bytes.NewReader(b) }

// Find reads the signature of a file for each list, without verifying it. If one is missing, the
// error is fs.ErrNotExist and explains how to sign. It refuses a list of signers beside the file.
func (ls Lists) Find(ctx context.Context, at Place, file string) (signatures [][]byte, names []string, err error) {
	for _, l := range ls {
		if err := RefuseBeside(at.Folder(), l.File); err != nil {
			return nil, nil, err
		}
		data, name, err := l.find(ctx, at, filepath.Base(file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, notSigned{fmt.Sprintf("%s is not signed, and %s wants that: there is no %s\nnext: %s  # or fetch it from the source of the files",
				file, l.From, file+l.Endings()[0], l.SignCommand(file))}
		}
		if err != nil {
			return nil, nil, err
		}
		signatures, names = append(signatures, data), append(names, name)
	}
	return signatures, names, nil
}

// find reads the first file beside name with one of the signers' endings, and returns its name.
func (l List) find(ctx context.Context, at Place, name string) (data []byte, found string, err error) {
	for _, ending := range l.Endings() {
		if data, err = at.ReadBeside(ctx, name+ending); !errors.Is(err, fs.ErrNotExist) {
			return data, name + ending, err
		}
	}
	return nil, "", err
}

// notSigned is the error of a file without a signature.
type notSigned struct{ text string }

func (e notSigned) Error() string        { return e.text }
func (e notSigned) Is(target error) bool { return target == fs.ErrNotExist }

// Verify verifies that a signer of each list signed the content of a file, and returns the signers.
// The signatures lie beside the file. It reads the content to its end, which seals a sealed.File.
// It is an error if there is no list.
func (ls Lists) Verify(ctx context.Context, at Place, file string, of Content) ([]Signer, error) {
	signatures, names, err := ls.Find(ctx, at, file)
	if err != nil {
		return nil, err
	}
	if len(ls) == 0 {
		return nil, fmt.Errorf("verify %s: no list of signers is given", file)
	}
	var signers []Signer
	for i, l := range ls {
		who, err := l.verify(ctx, signatures[i], file, of)
		if err != nil {
			err = fmt.Errorf("%s (%s): %w", filepath.Join(filepath.Dir(file), names[i]), l.From, err)
			if ctx.Err() == nil && !strings.Contains(err.Error(), "\nnext: ") && localfile.Exists(l.File) {
				err = fmt.Errorf("%w\nnext: %s %s  # these may sign; fetch %s and its signature again, or let one of these sign it", err, plaintext.Either(l.ring != nil, "gpg --show-keys", "cat"), plaintext.Quote(l.File), filepath.Base(file))
			}
			return nil, err
		}
		signers = append(signers, who)
	}
	return signers, nil
}

// verify verifies a signature of the content, then reads that to its end. A large file shows its
// progress. file is for messages.
func (l List) verify(ctx context.Context, signature []byte, file string, of Content) (who Signer, err error) {
	count := func(int64) {}
	if of.SizeBytes() > shownBytes {
		step := progress.Start(ctx, "prove who signed "+file, of.SizeBytes(), progress.Bytes)
		defer func() { step.End(who.String(), err) }()
		count = step.Add
	}
	read := of.Reader(ctx, count)
	if who, err = l.Verify(ctx, signature, read); err == nil {
		_, err = io.Copy(io.Discard, read) // to its end, which seals a file
	}
	return who, err
}
