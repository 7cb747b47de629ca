package source

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clean is source that follows every rule, with the structure of ours: magefiles and stages
// in one module, and a second module.
const clean = `
-- go.mod --
module fixture

go 1.25

ignore ./build
-- layers/layers.go --
// Package layers is for tests.
package layers

func Live() int { return 1 }
-- images/images.go --
// Package images is for tests.
package images

import "fixture/layers"

func Live() int { return layers.Live() }
-- images/imagestest/suite.go --
// Package imagestest is a suite that only tests use.
package imagestest

func Run() int { return 1 }
-- magefiles/up.go --
//go:build mage

// Package main is for tests.
package main

import (
	"fmt"

	"fixture/images"
)

// Up prints a number.
func Up() { fmt.Println(images.Live()) }
-- magefiles/deadcode.go --
//go:build mage && deadcode

package main

func main() { Up() }
-- build/checkout/ugly.go --
package  ugly
-- nested/go.mod --
module fixture/nested

go 1.22
-- nested/main.go --
// Nested is for tests.
package main

func main() {}
`

// The tools of this clone are built once for all tests: those of the rules, and gotestsum.
var ruleTools, runTools = sync.OnceValues(ourTools("gofumpt", "staticcheck", "deadcode")), sync.OnceValues(ourTools("gotestsum"))

func ourTools(names ...string) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		root, err := cloneRoot()
		if err != nil {
			return nil, err
		}
		return buildTools(context.Background(), root, names...)
	}
}

// fixture unpacks the clean source and adds or replaces files.
func fixture(t *testing.T, more string) tree {
	t.Helper()
	if os.Getenv("CI") == "" {
		t.Skip("needs staticcheck and deadcode, whose build takes a minute of CPU time: set CI=true")
	}
	tools, err := ruleTools()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := newTree(t.Context(), unpack(t, clean+more), tools)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestRulesHold(t *testing.T) {
	tr := fixture(t, "")
	before := listFiles(t, tr.root)
	var said bytes.Buffer
	broken, err := tr.checkRules(t.Context(), &said, rules)
	if err != nil || len(broken) > 0 {
		t.Errorf("checkRules() = %v, %v; want none\n%s", broken, err, &said)
	}
	if d := cmp.Diff(before, listFiles(t, tr.root)); d != "" {
		t.Errorf("check left files behind:\n%s", d)
	}
}

func listFiles(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Each rule finds its violations everywhere: behind the tag of magefiles, in the nested
// module, in tests.
func TestRulesBreak(t *testing.T) {
	for _, tt := range []struct {
		rule, name, more string
		want             []string // each in one of the findings
	}{
		{"format", "", `
-- images/ugly.go --
package images
var  X = 1
-- images/gofumpt.go --
package images

func f() {

	_ = 1
}
-- magefiles/ugly.go --
//go:build mage

package main
var  X = 1
-- nested/ugly.go --
package main
var  X = 1
-- layers/no.go --
package layers

func (
`, []string{"images/ugly.go", "images/gofumpt.go", "magefiles/ugly.go", "nested/ugly.go", "layers/no.go"}},
		{"vet", "", vetted("images/v.go", "", "images") + vetted("magefiles/v.go", "//go:build mage\n\n", "main") +
			vetted("nested/v.go", "", "main") + vetted("layers/v_test.go", "", "layers"), []string{
			"images/v.go:5:27: fmt.Printf format %d", "magefiles/v.go:7:27: fmt.Printf format %d",
			"nested/v.go:5:27: fmt.Printf format %d", "layers/v_test.go:5:27: fmt.Printf format %d",
		}},
		{"vet", "does not compile", "-- images/v.go --\npackage images\n\nvar X int = \"\"\n", []string{"images/v.go:3:13"}},
		{"staticcheck", "", `
-- images/s.go --
package images

func unused() {}
-- magefiles/s.go --
//go:build mage

package main

func unused() {}
-- nested/s.go --
package main

func unused() {}
`, []string{
			"images/s.go:3:6: func unused is unused (U1000)",
			"magefiles/s.go:5:6: func unused is unused (U1000)",
			"nested/s.go:3:6: func unused is unused (U1000)",
		}},
		{"tidy", "", `
-- go.mod --
module fixture

go 1.25

ignore ./build

require example.invalid/root v1.0.0
-- nested/go.mod --
module fixture/nested

go 1.22

require example.invalid/nested v1.0.0
-- ci/tools/go.mod --
module fixture/ci/tools

go 1.22

require example.invalid/tools v1.0.0
`, []string{"-require example.invalid/root v1.0.0", "-require example.invalid/nested v1.0.0", "-require example.invalid/tools v1.0.0"}},
		{"deadcode", "", `
-- images/d.go --
package images

func Dead() {}

func OnlyTested() {}
-- images/d_test.go --
package images

import "testing"

func TestIt(t *testing.T) { OnlyTested() }
-- magefiles/d.go --
//go:build mage

package main

func dead() {}
-- nested/d.go --
package main

func dead() {}
-- ci/small/d.go --
package main

import _ "fixture/images"

func main() {}

func dead() {}
-- flash/d.go --
package flash

func Dead() {}
`, []string{
			"images/d.go:3:6: unreachable func: Dead", "images/d.go:5:6: unreachable func: OnlyTested",
			"magefiles/d.go:5:6: unreachable func: dead", "nested/d.go:3:6: unreachable func: dead",
			"ci/small/d.go:7:6: unreachable func: dead",
			"flash/d.go:3:6: unreachable func: Dead",
		}},
		{"licences", "unknown", linked("-- dep/LICENSE --\nAll your code are belong to us\n"), []string{"example.invalid/dep: unknown licence: read "}},
		{"licences", "none", linked(""), []string{"example.invalid/dep: no licence in "}},
		{"imports", "", `
-- layers/up.go --
package layers

import _ "fixture/flash"
-- layers/up_test.go --
package layers_test

import _ "fixture/images"
-- layers/run/e.go --
package run

import _ "fixture/images"
-- flash/f.go --
package flash
-- util/u.go --
package util
`, []string{
			"fixture/layers imports fixture/flash: layers must not know of flash (a checkout is the same for every image)",
			"fixture/layers imports fixture/images",
			"layers/run must not know of images",
			"fixture/util: in no stage",
		}},
	} {
		t.Run(tt.rule+" "+tt.name, func(t *testing.T) {
			t.Parallel()
			tr := fixture(t, tt.more)
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == tt.rule })
			found := rules[i].runRule(t.Context(), tr)
			for _, want := range tt.want {
				if !slices.ContainsFunc(found, func(line string) bool { return strings.Contains(line, want) }) {
					t.Errorf("%s found %q; want %q", tt.rule, found, want)
				}
			}
		})
	}
}

func vetted(name, tag, pkg string) string {
	return "-- " + name + " --\n" + tag + "package " + pkg + "\n\nimport \"fmt\"\n\nfunc init() { fmt.Printf(\"%d\\n\", \"text\") }\n"
}

// linked adds a module that the nested program imports.
func linked(more string) string {
	return `
-- nested/go.mod --
module fixture/nested

go 1.22

require example.invalid/dep v1.0.0

replace example.invalid/dep => ../dep
-- nested/d.go --
package main

import _ "example.invalid/dep"
-- dep/go.mod --
module example.invalid/dep

go 1.22
-- dep/d.go --
package dep
` + more
}

// zlib is a licence that is not among the allowed ones.
const zlib = `Copyright 2001 Somebody

This software is provided 'as-is', without any express or implied warranty. In no event will the
authors be held liable for any damages arising from the use of this software.

Permission is granted to anyone to use this software for any purpose, including commercial
applications, and to alter it and redistribute it freely, subject to the following restrictions:

1. The origin of this software must not be misrepresented; you must not claim that you wrote the
original software. If you use this software in a product, an acknowledgment in the product
documentation would be appreciated but is not required.
2. Altered source versions must be plainly marked as such, and must not be misrepresented as being
the original software.
3. This notice may not be removed or altered from any source distribution.
`

// mit is a licence that is allowed.
const mit = `MIT License

Copyright (c) 2001 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

func TestLicence(t *testing.T) {
	for text, want := range map[string]string{
		mit:        "",
		zlib:       "Zlib is not among the allowed licences",
		mit + zlib: "Zlib is not among the allowed licences",
		"Copyright 2001 Somebody\n\nYou may look.\n": "unknown licence",
		mit + "Not for use in ships.\n":              "unknown licence",
		mit + "\nCopyright (c) 2002 Them\n":          "",
	} {
		path := filepath.Join(t.TempDir(), "LICENSE")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got := checkLicence(path)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("checkLicence(%.40q) = %q; want %q", text, got, want)
		}
	}
}

func TestFormat(t *testing.T) {
	tr := fixture(t, "-- images/ugly.go --\npackage images\nvar  X = 1\n-- nested/ugly.go --\npackage main\nvar  X = 1\n")
	if err := tr.formatFiles(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, err := checkFormat(t.Context(), tr); err != nil || len(found) > 0 {
		t.Errorf("after Format, gofumpt -l finds %q, %v", found, err)
	}
	ugly, err := os.ReadFile(filepath.Join(tr.root, "build/checkout/ugly.go"))
	if err != nil || string(ugly) != "package  ugly\n" {
		t.Errorf("Format touched a checkout: %q, %v", ugly, err)
	}
}
