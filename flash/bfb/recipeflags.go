package bfb

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Wish is a Recipe in the words of a command line.
type Wish struct {
	Bases    []string
	Parts    string // see ParseParts
	Expert   bool
	For      int // see Filter; -1: keep everything
	Strip    int
	Careless bool
}

// MakeFile makes the stream of a command line, and lists it.
func MakeFile(ctx context.Context, w io.Writer, out string, wish Wish) error {
	parts, err := ParseParts(wish.Parts)
	if err != nil {
		return err
	}
	r := Recipe{Bases: wish.Bases, Parts: parts, Expert: wish.Expert}
	switch {
	case wish.For >= 0:
		r.Filter = &Filter{Version: wish.For, Strip: wish.Strip, Careless: wish.Careless}
	case wish.Strip >= 0 || wish.Careless:
		return errors.New("which versions to leave out depends on the hardware; name its version with --for")
	}
	s, err := Make(ctx, out, r)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d images, %d bytes\n", out, len(s.Images), s.StreamBytes)
	return s.List(w, false)
}
