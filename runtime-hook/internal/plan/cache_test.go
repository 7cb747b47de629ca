package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

// fill sets all that can be set in v to something that is not zero, each thing to another.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(-*n)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n) << (*n % 9))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Struct:
		for i := 0; i < v.NumField(); i++ {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	}
}

// unexported are the fields that are not kept.
func unexported(t reflect.Type) (out []string) {
	switch t.Kind() {
	case reflect.Slice:
		return unexported(t.Elem())
	case reflect.Struct:
		for i := 0; i < t.NumField(); i++ {
			if f := t.Field(i); !f.IsExported() {
				out = append(out, t.Name()+"."+f.Name)
			}
			out = append(out, unexported(t.Field(i).Type)...)
		}
	}
	return out
}

// Every field of a plan survives. One that is added and cannot be kept fails here.
func TestEveryFieldIsKept(t *testing.T) {
	var want, got savedPlan
	fill(reflect.ValueOf(&want).Elem(), new(int64))
	d := decoder{rest: string(appendValue(nil, reflect.ValueOf(want)))}
	d.readValue(reflect.ValueOf(&got).Elem())
	if d.err != nil || d.rest != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, and %q is left; want %+v", got, d.err, d.rest, want)
	}
	// What is not exported may serve the compiler only.
	if lost := unexported(reflect.TypeOf(want)); !reflect.DeepEqual(lost, []string{"Link.source"}) {
		t.Errorf("fields %q are not kept; export those that a container needs", lost)
	}
}

// A file that is cut off anywhere, or changed, is not used.
func TestBrokenFile(t *testing.T) {
	var r Compiled
	fill(reflect.ValueOf(&r).Elem(), new(int64))
	data := string(encodeResult(r))
	for i := range data {
		if _, err := decodeResult(data[:i]); err == nil {
			t.Fatalf("read a file cut off at %d of %d bytes", i, len(data))
		}
		changed := []byte(data)
		changed[i] ^= 0x10
		if _, err := decodeResult(string(changed)); err == nil {
			t.Fatalf("read a file changed at %d of %d bytes", i, len(data))
		}
	}
}

// Without the sum in front of it, the decoder meets bytes that nobody wrote.
func FuzzDecode(f *testing.F) {
	var r Compiled
	fill(reflect.ValueOf(&r).Elem(), new(int64))
	f.Add(string(appendValue(nil, reflect.ValueOf(r))))
	f.Add("\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
	f.Fuzz(func(t *testing.T, data string) {
		var got, again Compiled
		d := decoder{rest: data}
		d.readValue(reflect.ValueOf(&got).Elem())
		if d.err != nil {
			return
		}
		d = decoder{rest: string(appendValue(nil, reflect.ValueOf(got)))}
		d.readValue(reflect.ValueOf(&again).Elem())
		if d.err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("read %+v from what was written for %+v, %v", again, got, d.err)
		}
	})
}

// savedPlan is a compiled plan with all that it was made from: program, settings and CSV files.
type savedPlan struct {
	Hook   Seen
	Ignore []string
	Files  []csv.File
	Compiled
}

func (k savedPlan) head() []byte { return fileHead(k.Hook, k.Ignore, k.Files) }

func samplePlan(path string) savedPlan {
	k := savedPlan{Hook: Seen{Inode: 7}, Files: []csv.File{{Path: "a.csv", Data: "lib, /a\n"}}}
	k.Plan.Mounts = []Mount{{Source: path, Path: "/a"}}
	k.Watch = Compile("/", []csv.Entry{{Kind: csv.Library, Path: path}}, nil).Watch
	return k
}

// What was kept is found again by the same hook, for the same lists, while the
// board is the same and the file is root's alone.
func TestLoad(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root's files count")
	}
	tests := []struct {
		name   string
		change func(dir, file string, k *savedPlan) error
		want   bool
	}{
		{"other patterns are ignored", func(_, _ string, k *savedPlan) error { k.Ignore = []string{"/a"}; return nil }, false},
		{"nothing changed", func(string, string, *savedPlan) error { return nil }, true},
		{"a list", func(_, _ string, k *savedPlan) error { k.Files[0].Data = "lib, /b\n"; return nil }, false},
		{"one more list", func(_, _ string, k *savedPlan) error { k.Files = append(k.Files, csv.File{}); return nil }, false},
		{"the hook", func(_, _ string, k *savedPlan) error { k.Hook.Inode++; return nil }, false},
		{"the board", func(_, _ string, k *savedPlan) error { return os.Remove(k.Plan.Mounts[0].Source) }, false},
		{"others may write to it", func(_, file string, _ *savedPlan) error { return os.Chmod(file, 0o622) }, false},
		{"it is another's", func(_, file string, _ *savedPlan) error { return os.Chown(file, 5, 0) }, false},
		{"others may write to the folder", func(dir, _ string, _ *savedPlan) error { return os.Chmod(dir, 0o777) }, false},
		{"the folder is another's", func(dir, _ string, _ *savedPlan) error { return os.Chown(dir, 5, 0) }, false},
		{"it is a link", func(dir, file string, _ *savedPlan) error {
			return cmpErr(os.Rename(file, dir+"/x"), os.Symlink("x", file))
		}, false},
		{"the folder is a link", func(dir, _ string, _ *savedPlan) error {
			return cmpErr(os.Rename(dir, dir+"x"), os.Symlink(dir+"x", dir))
		}, false},
		{"it is a FIFO", func(_, file string, _ *savedPlan) error {
			return cmpErr(os.Remove(file), unix.Mkfifo(file, 0o600))
		}, false},
		{"it is cut off", func(_, file string, _ *savedPlan) error { return os.Truncate(file, 100) }, false},
		{"it is huge", func(_, file string, _ *savedPlan) error { return os.Truncate(file, maxCacheBytes+1) }, false},
		{"it is gone", func(_, file string, _ *savedPlan) error { return os.Remove(file) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			top := t.TempDir()
			dir, library := filepath.Join(top, "run"), filepath.Join(top, "a.so")
			must(t, os.WriteFile(library, nil, 0o644))
			k := samplePlan(library)
			must(t, savePlan(dir, k.head(), k.Compiled))
			must(t, tt.change(dir, filepath.Join(dir, planFile), &k))
			got, ok := loadPlan(dir, k.head(), false)
			if ok != tt.want {
				t.Fatalf("load = %v; want %v", ok, tt.want)
			}
			if ok && !reflect.DeepEqual(got, k.Compiled) {
				t.Errorf("load = %+v; want %+v", got, k.Compiled)
			}
		})
	}
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Hooks that write at once leave one whole file, also after one that was killed.
func TestSaveAtOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root's files count")
	}
	dir := t.TempDir()
	library := filepath.Join(dir, "a.so")
	must(t, os.WriteFile(library, nil, 0o644))
	half := filepath.Join(dir, tempPrefix+"1")
	must(t, os.WriteFile(half, []byte("half a file"), 0o600))
	must(t, os.Chtimes(half, time.Time{}, time.Now().Add(-time.Hour)))
	k := samplePlan(library)
	must(t, savePlan(dir, k.head(), k.Compiled))
	var hooks sync.WaitGroup
	for i := 0; i < 8; i++ {
		hooks.Add(1)
		go func() {
			defer hooks.Done()
			for j := 0; j < 50; j++ {
				_ = savePlan(dir, k.head(), k.Compiled) // another one is at it
				if _, ok := loadPlan(dir, k.head(), false); !ok {
					t.Error("the file is not whole")
				}
			}
		}()
	}
	hooks.Wait()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 2 {
		t.Errorf("left %q, %v; want the library and the plan", names, err)
	}
}
