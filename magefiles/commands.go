//go:build mage

package main

import (
	"embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"slices"
	"strings"
)

// sources are these files themselves. The check of command lines reads each command's
// parameters from them, so that it covers every command. Files whose names begin with m are left
// out and must have no commands: Mage's own mage_output_file.go comes and goes during a compilation.
//
//go:embed [^m]*.go
var sources embed.FS

// command is the parameters of a target in these files.
type command struct {
	name  string     // in lower case; Mage ignores case
	words []argument // required, in order
	flags []argument
}

type argument struct {
	name string
	kind string // string, int, bool or Duration
	list bool   // names separated by commas
}

// readCommands returns the exported functions of these files and of their namespaces, as
// Mage sees them.
func readCommands() (map[string]command, error) {
	files, err := fs.Glob(sources, "*.go")
	if err != nil {
		return nil, err
	}
	all := map[string]command{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := sources.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() && ast.IsExported(receiverName(f)) {
				c := commandOf(f)
				all[c.name] = c
			}
		}
	}
	return all, nil
}

func commandOf(f *ast.FuncDecl) command {
	c := command{name: strings.ToLower(f.Name.Name)}
	if f.Recv != nil {
		c.name = strings.ToLower(receiverName(f)) + ":" + c.name
	}
	lists := listArguments(f.Body)
	for _, field := range f.Type.Params.List {
		kind, optional := kindOf(field.Type)
		for _, name := range field.Names {
			a := argument{strings.ToLower(name.Name), kind, lists[name.Name]}
			switch {
			case kind == "Context":
			case optional:
				c.flags = append(c.flags, a)
			default:
				c.words = append(c.words, a)
			}
		}
	}
	return c
}

// receiverName returns the namespace of a command, or the command's own name if it has
// none.
func receiverName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	name, _ := kindOf(f.Recv.List[0].Type)
	return name
}

// kindOf returns the name of a type without its package. Mage's optional arguments are
// pointers.
func kindOf(e ast.Expr) (name string, optional bool) {
	switch e := e.(type) {
	case *ast.StarExpr:
		name, _ = kindOf(e.X)
		return name, true
	case *ast.SelectorExpr:
		return e.Sel.Name, false
	}
	return fmt.Sprint(e), false
}

// listArguments returns the names of the parameters that a function splits at commas, with
// splitWords or splitList.
func listArguments(body ast.Node) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || fmt.Sprint(call.Fun) != "splitWords" && fmt.Sprint(call.Fun) != "splitList" {
			return true
		}
		ast.Inspect(call, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				names[name.Name] = true
			}
			return true
		})
		return true
	})
	return names
}

func (c command) flag(name string) *argument {
	if i := slices.IndexFunc(c.flags, func(a argument) bool { return a.name == name }); i >= 0 {
		return &c.flags[i]
	}
	return nil
}

func (c command) flagNames() (all []string) {
	for _, f := range c.flags {
		all = append(all, "-"+f.name)
	}
	return all
}
