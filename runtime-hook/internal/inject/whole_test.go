package inject

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// wholePlan gives three files and a link, which are all that a folder of the board
// holds, and one file more.
func wholePlan(t *testing.T, board string) plan.Plan {
	t.Helper()
	var p plan.Plan
	must(t, os.Mkdir(board+"/lib", 0o755))
	for i := 0; i < 3; i++ {
		name := fmt.Sprintf("/lib/%d.so", i)
		must(t, os.WriteFile(board+name, []byte("board"), 0o644))
		p.Mounts = append(p.Mounts, plan.Mount{Source: board + name, Path: "/opt" + name, From: "x.csv:1"})
	}
	must(t, os.Symlink("0.so", board+"/lib/l.so"))
	p.Links = []plan.Link{{Path: "/opt/lib/l.so", Target: "0.so", File: board + "/lib/0.so"}}
	p.Mounts = append(p.Mounts, plan.Mount{Source: board + "/a.so", Path: "/opt/a.so"})
	p.Wholes = []plan.Whole{{Source: board + "/lib", Path: "/opt/lib", Entries: 4}}
	return p
}

// A folder is given whole where that hides nothing of the image; the container
// sees the same either way.
func TestWhole(t *testing.T) {
	one := []string{"/opt/lib ro,nosuid,nodev,relatime -", "/opt/a.so ro,nosuid,nodev,relatime -"}
	tests := []struct {
		name  string
		image func(t *testing.T, board, rootfs string, p *plan.Plan)
		whole bool
	}{
		{"the image lacks it", func(*testing.T, string, string, *plan.Plan) {}, true},
		{"it is empty", func(t *testing.T, _, rootfs string, _ *plan.Plan) {
			must(t, os.MkdirAll(rootfs+"/opt/lib", 0o755))
		}, true},
		{"a link leads to an empty one", func(t *testing.T, _, rootfs string, _ *plan.Plan) {
			must(t, os.MkdirAll(rootfs+"/opt/other", 0o755))
			must(t, os.Symlink("/opt/other", rootfs+"/opt/lib"))
		}, true},
		{"the image has a file there", func(t *testing.T, _, rootfs string, _ *plan.Plan) {
			must(t, os.MkdirAll(rootfs+"/opt/lib", 0o755))
			must(t, os.WriteFile(rootfs+"/opt/lib/own", nil, 0o644))
		}, false},
		{"an empty volume", func(t *testing.T, _, rootfs string, _ *plan.Plan) {
			must(t, os.MkdirAll(rootfs+"/opt/lib", 0o755))
			must(t, unix.Mount("tmpfs", rootfs+"/opt/lib", "tmpfs", 0, ""))
		}, false},
		{"one is left out", func(_ *testing.T, _, _ string, p *plan.Plan) { p.Mounts = p.Mounts[1:] }, false},
		{"the board has a mount in it", func(t *testing.T, board, _ string, _ *plan.Plan) {
			must(t, unix.Mount(board+"/a.so", board+"/lib/1.so", "", unix.MS_BIND, ""))
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachMountAPI(t, func(t *testing.T, old bool) {
				board, rootfs := stage(t)
				p := wholePlan(t, board)
				tt.image(t, board, rootfs, &p)
				files := len(p.Mounts)
				res := apply(t, rootfs, old, p)
				if want := (Result{Files: files, Links: 1}); !reflect.DeepEqual(res, want) {
					t.Errorf("result %+v; want %+v", res, want)
				}
				got := mounts(t, rootfs)
				for i, m := range got {
					got[i] = strings.Replace(m, "/opt/other", "/opt/lib", 1)
				}
				if reflect.DeepEqual(got, one) != tt.whole {
					t.Errorf("mounts %q; want the folder whole: %v", got, tt.whole)
				}
				for _, m := range p.Mounts {
					text, err := os.ReadFile(rootfs + "/" + strings.Replace(m.Path, "/opt/lib", follow(rootfs), 1))
					if want, _ := os.ReadFile(m.Source); err != nil || string(text) != string(want) {
						t.Errorf("%s = %q, %v; want %q", m.Path, text, err, want)
					}
				}
			})
		})
	}
}

// follow is where /opt/lib leads in the container.
func follow(rootfs string) string {
	if target, err := os.Readlink(rootfs + "/opt/lib"); err == nil {
		return target
	}
	return "/opt/lib"
}

// What an image puts in the folder's way is told of each file, as ever.
func TestWholeInTheWay(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		p := wholePlan(t, board)
		must(t, os.Mkdir(rootfs+"/opt", 0o755))
		must(t, os.Symlink("/not/there", rootfs+"/opt/lib"))
		res := apply(t, rootfs, old, p)
		if res.Files != 1 || len(res.Skipped) != 4 {
			t.Errorf("result %+v; want the file beside it, and four skipped", res)
		}
	})
}

// Where the image has something in a folder, one in that can be given whole still,
// and nothing is given twice where it has not.
func TestWholeInWhole(t *testing.T) {
	for own, want := range map[string]int{"": 2, "/opt/lib/own": 5} {
		eachMountAPI(t, func(t *testing.T, old bool) {
			board, rootfs := stage(t)
			p := wholePlan(t, board)
			must(t, os.Mkdir(board+"/lib/sub", 0o755))
			for _, name := range []string{"/lib/sub/s.so", "/lib/sub/t.so"} {
				must(t, os.WriteFile(board+name, []byte("board"), 0o644))
				p.Mounts = append(p.Mounts, plan.Mount{Source: board + name, Path: "/opt" + name})
			}
			p.Wholes[0].Entries += 2
			p.Wholes = append(p.Wholes, plan.Whole{Source: board + "/lib/sub", Path: "/opt/lib/sub", Entries: 2})
			if own != "" {
				must(t, os.MkdirAll(rootfs+"/opt/lib", 0o755))
				must(t, os.WriteFile(rootfs+own, nil, 0o644))
			}
			res := apply(t, rootfs, old, p)
			text, err := os.ReadFile(rootfs + "/opt/lib/sub/s.so")
			got := mounts(t, rootfs)
			if wantRes := (Result{Files: 6, Links: 1}); !reflect.DeepEqual(res, wantRes) || len(got) != want || err != nil || string(text) != "board" {
				t.Errorf("with %q in the image: result %+v, mounts %q, %q, %v; want %+v and %d mounts", own, res, got, text, err, wantRes, want)
			}
		})
	}
}
