package elf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// noted is a library of the compiler's with the note.
func noted(t testing.TB, text string) []byte {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc (Debian package gcc)")
	}
	dir := t.TempDir()
	source := `__asm__(".section .note.slipway,\"\",%note\n.long 4,1f-0f,9\n.asciz \"own\"\n0: .ascii \"TEXT\"\n1:\n.text");`
	if err := os.WriteFile(dir+"/a.c", []byte(strings.Replace(source, "TEXT", text, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-nostdlib", "-o", dir+"/a.so", dir+"/a.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "a.so"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tiny has nothing but the note, as the fuzzer is quick with little.
func tiny(text string) []byte {
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01")
	note := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 4), uint32(len(text))), 9)
	note = append(note, "own\x00"+text...)
	names := "\x00.note.slipway\x00"
	section := func(name, kind uint32, at, size int) []byte {
		b := make([]byte, sectionSize)
		le.PutUint32(b, name)
		le.PutUint32(b[4:], kind)
		le.PutUint64(b[24:], uint64(at))
		le.PutUint64(b[32:], uint64(size))
		le.PutUint64(b[48:], 1)
		return b
	}
	le.PutUint64(head[40:], uint64(64+len(note)+len(names)))
	le.PutUint16(head[58:], sectionSize)
	le.PutUint16(head[60:], 2)
	data := append(append(head, note...), names...)
	data = append(data, section(0, 3, 64+len(note), len(names))...)
	return append(data, section(1, sectionNote, 64, len(note))...)
}

func TestNote(t *testing.T) {
	good := noted(t, "what it says")
	change := func(at int, value byte) []byte {
		b := bytes.Clone(good)
		b[at] = value
		return b
	}
	at := bytes.Index(good, []byte("own\x00what")) - 12
	tests := []struct {
		name           string
		data           []byte
		section, owner string
		want           string
	}{
		{"the note", good, ".note.slipway", "own", "what it says"},
		{"a tiny one", tiny("says"), ".note.slipway", "own", "says"},
		{"another section", good, ".note.slip", "own", ""},
		{"another owner", good, ".note.slipway", "other", ""},
		{"a long name", change(at, 200), ".note.slipway", "own", ""},
		{"a long text", change(at+4, 200), ".note.slipway", "own", ""},
		{"many sections", change(61, 0xff), ".note.slipway", "own", ""},
		{"no names of sections", change(62, 0xf0), ".note.slipway", "own", ""},
		{"sections far away", change(46, 0xff), ".note.slipway", "own", ""},
		{"cut off", good[:len(good)-1], ".note.slipway", "own", ""},
		{"of 32 bits", change(4, 1), ".note.slipway", "own", ""},
		{"text", []byte("/* GNU ld script */"), ".note.slipway", "own", ""},
	}
	for _, tt := range tests {
		if got := Note(bytes.NewReader(tt.data), tt.section, tt.owner); string(got) != tt.want {
			t.Errorf("%s: Note = %q; want %q", tt.name, got, tt.want)
		}
	}
}

// Whatever the file says, the note is a part of it, and small.
func FuzzNote(f *testing.F) {
	f.Add(tiny("what it says"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got := Note(bytes.NewReader(data), ".note.slipway", "own"); !bytes.Contains(data, got) || len(got) > maxNote {
			t.Errorf("a note of %d bytes, which the file does not have", len(got))
		}
	})
}
