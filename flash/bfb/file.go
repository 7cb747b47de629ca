package bfb

import (
	"context"
	"fmt"
	"io"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// File is a stream in a file.
type File struct {
	Stream

	*sealed.File
}

// Open opens a file and reads the headers of the stream in it. The caller closes the file.
func Open(path string) (*File, error) {
	f, err := sealed.Open(path)
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	s, err := ReadFile(f)
	if err != nil {
		f.Close()
	}
	return s, err
}

// ReadFile reads the headers of the stream in an open file, which stays open.
func ReadFile(f *sealed.File) (*File, error) {
	s, err := Read(f, f.SizeBytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return &File{s, f}, nil
}

// Verify checks the CRC-32 of all images and shows the progress.
func (f *File) Verify(ctx context.Context) error {
	step := progress.Start(ctx, "check "+f.Name(), f.StreamBytes, progress.Bytes)
	err := f.Check(ctx, f, step.Add)
	if err != nil {
		err = fmt.Errorf("%s: %w", f.Name(), err)
	}
	step.End(fmt.Sprintf("%d images", len(f.Images)), err)
	return err
}

// Show prints the images, trailing data and notes of the stream at path, as lines or as JSON.
func Show(w io.Writer, path string, asJSON bool) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if asJSON {
		return plaintext.WriteJSON(w, f.Stream)
	}
	if err := f.List(w); err != nil {
		return err
	}
	f.printRemarks(w)
	return nil
}

// printRemarks prints the number of trailing bytes and the notes.
func (s Stream) printRemarks(w io.Writer) {
	if s.TrailingBytes > 0 {
		fmt.Fprintf(w, "%10d bytes of trailing data (a bf.cfg or a root file system)\n", s.TrailingBytes)
	}
	for _, n := range s.Notes {
		fmt.Fprintln(w, "note: "+n)
	}
}

// CheckFile checks the headers and checksums of the stream at path, and prints a summary.
func CheckFile(ctx context.Context, w io.Writer, path string) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Verify(ctx); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d images in %d bytes, all as their headers say\n", path, len(f.Images), f.StreamBytes)
	f.printRemarks(w)
	return nil
}

// ExtractFile extracts images from the stream at path and prints the names of the written files.
func ExtractFile(ctx context.Context, w io.Writer, path, prefix string, names []string) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	files, err := f.Extract(ctx, f, prefix, names)
	for _, file := range files {
		fmt.Fprintln(w, file)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
