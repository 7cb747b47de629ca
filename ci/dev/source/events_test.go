package source

import (
	"fmt"
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
