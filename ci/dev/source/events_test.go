package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExcerptKeepsBothEnds(t *testing.T) {
	var e excerpt
	var want []string
	for i := range maxFirst + 7 + maxLast {
		line := fmt.Sprintf("line %d", i)
		fmt.Fprintln(&e, line)
		switch {
		case i < maxFirst, i >= maxFirst+7:
			want = append(want, line)
		case i == maxFirst:
			want = append(want, "(7 lines between these are in events.jsonl)")
		}
	}
	if diff := cmp.Diff(want, e.all()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestExcerptOfAnOpenLine(t *testing.T) {
	var e excerpt
	fmt.Fprint(&e, "one\n"+strings.Repeat("x", 2*maxLineBytes))
	if diff := cmp.Diff([]string{"one", strings.Repeat("x", maxLineBytes)}, e.all()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestLinesOfTwoWriters(t *testing.T) {
	name := filepath.Join(t.TempDir(), "events")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	shared := &sharedFile{File: file}
	a, b := &lineWriter{file: shared}, &lineWriter{file: shared}
	long := strings.Repeat("x", maxEventBytes)
	for _, w := range []struct {
		to   *lineWriter
		text string
	}{{a, "a1 "}, {b, "b1\nb2 "}, {a, "a1\na2\na3"}, {b, "b2\n"}, {a, long}} {
		if n, err := w.to.Write([]byte(w.text)); n != len(w.text) || err != nil {
			t.Fatalf("Write(%.9q) = %d, %v", w.text, n, err)
		}
	}
	if err := errors.Join(a.flush(), b.flush()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if want := "b1\na1 a1\na2\nb2 b2\na3" + long; string(got) != want {
		t.Errorf("the file holds %.60q, %v; want %.60q", got, err, want)
	}
}
